package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"go.yaml.in/yaml/v4"
)

// TestDeploy: the examples for schedulers are read by a shell and as YAML, and give
// flags that train has.
func TestDeploy(t *testing.T) {
	folder := filepath.Join("..", "..", "deploy")
	script := filepath.Join(folder, "train.slurm")
	if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`(?s)remat train.*`).FindString(string(text))
	var job struct {
		Kind string
		Spec struct {
			Replicas map[string]struct {
				Template struct {
					Spec struct {
						Containers []struct{ Command, Args []string }
					}
				}
			} `yaml:"mpiReplicaSpecs"`
		}
	}
	if text, err = os.ReadFile(filepath.Join(folder, "kubeflow.yaml")); err == nil {
		err = yaml.Unmarshal(text, &job)
	}
	launcher := job.Spec.Replicas["Launcher"].Template.Spec.Containers
	if err != nil || job.Kind != "MPIJob" || len(launcher) != 1 || launcher[0].Command[0] != "mpirun" || len(job.Spec.Replicas["Worker"].Template.Spec.Containers) != 1 {
		t.Fatalf("%v: %+v", err, job)
	}
	words := append(regexp.MustCompile(`--[a-z-]+`).FindAllString(given, -1), launcher[0].Args...)
	e := newEnv(context.Background(), io.Discard, io.Discard)
	var have []string
	for _, f := range append(globalFlags(), trainCommand(e).Flags...) {
		have = append(have, dashes(f.Names()[0]))
	}
	count := 0
	for _, w := range words {
		if regexp.MustCompile(`^--`).MatchString(w) {
			if count++; !slices.Contains(have, w) {
				t.Errorf("train has no %s", w)
			}
		}
	}
	if count < 12 {
		t.Errorf("only %d flags", count)
	}
}
