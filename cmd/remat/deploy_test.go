package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// The part of Kubernetes' and Kubeflow's schemas that the examples use. A field that is
// not here is refused, as the API server refuses one that it does not know.
type (
	object struct {
		APIVersion string         `yaml:"apiVersion"`
		Kind       string         `yaml:"kind"`
		Metadata   map[string]any `yaml:"metadata"`
	}
	podTemplate struct {
		Spec struct {
			RestartPolicy string      `yaml:"restartPolicy"`
			Containers    []container `yaml:"containers"`
			Volumes       []struct {
				Name  string `yaml:"name"`
				Claim struct {
					Name string `yaml:"claimName"`
				} `yaml:"persistentVolumeClaim"`
			} `yaml:"volumes"`
		} `yaml:"spec"`
	}
	container struct {
		Name       string   `yaml:"name"`
		Image      string   `yaml:"image"`
		WorkingDir string   `yaml:"workingDir"`
		Command    []string `yaml:"command"`
		Args       []string `yaml:"args"`
		Resources  struct {
			Limits map[string]string `yaml:"limits"`
		} `yaml:"resources"`
		VolumeMounts []struct {
			Name string `yaml:"name"`
			Path string `yaml:"mountPath"`
		} `yaml:"volumeMounts"`
	}
	// job is batch/v1, mpiJob kubeflow.org/v2beta1.
	job struct {
		object `yaml:",inline"`
		Spec   struct {
			CompletionMode       string      `yaml:"completionMode"`
			Completions          int         `yaml:"completions"`
			Parallelism          int         `yaml:"parallelism"`
			BackoffLimitPerIndex int         `yaml:"backoffLimitPerIndex"`
			Template             podTemplate `yaml:"template"`
		} `yaml:"spec"`
	}
	mpiJob struct {
		object `yaml:",inline"`
		Spec   struct {
			SlotsPerWorker int `yaml:"slotsPerWorker"`
			RunPolicy      struct {
				CleanPodPolicy string `yaml:"cleanPodPolicy"`
				BackoffLimit   int    `yaml:"backoffLimit"`
			} `yaml:"runPolicy"`
			Replicas map[string]struct {
				Replicas int         `yaml:"replicas"`
				Template podTemplate `yaml:"template"`
			} `yaml:"mpiReplicaSpecs"`
		} `yaml:"spec"`
	}
)

// readDeployed reads an example by its schema, and checks what a pod's template needs.
func readDeployed(t *testing.T, name string, to any, templates func() []podTemplate) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(to); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, of := range templates() {
		var volumes []string
		for _, v := range of.Spec.Volumes {
			volumes = append(volumes, v.Name)
		}
		if len(of.Spec.Containers) != 1 {
			t.Fatalf("%s: %d containers", name, len(of.Spec.Containers))
		}
		c := of.Spec.Containers[0]
		if c.Name == "" || c.Image == "" {
			t.Errorf("%s: a container without name or image", name)
		}
		for _, m := range c.VolumeMounts {
			if !slices.Contains(volumes, m.Name) || !filepath.IsAbs(m.Path) {
				t.Errorf("%s: no volume %q for %s", name, m.Name, m.Path)
			}
		}
	}
}

// TestDeploy: the examples that train are read by a shell and by their schema, and give
// flags that train has.
func TestDeploy(t *testing.T) {
	script := filepath.Join("..", "..", "deploy", "train.slurm")
	if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	given := regexp.MustCompile(`(?s)remat train.*`).FindString(string(text))
	var j mpiJob
	readDeployed(t, "kubeflow.yaml", &j, func() []podTemplate {
		return []podTemplate{j.Spec.Replicas["Launcher"].Template, j.Spec.Replicas["Worker"].Template}
	})
	launcher := j.Spec.Replicas["Launcher"].Template.Spec.Containers[0]
	if j.APIVersion != "kubeflow.org/v2beta1" || j.Kind != "MPIJob" || len(j.Spec.Replicas) != 2 || launcher.Command[0] != "mpirun" {
		t.Fatalf("%+v", j)
	}
	if n := fmt.Sprint(j.Spec.Replicas["Worker"].Replicas * j.Spec.SlotsPerWorker); !slices.Contains(launcher.Command, n) {
		t.Errorf("%q for %s slots", launcher.Command, n)
	}
	words := append(regexp.MustCompile(`--[a-z-]+`).FindAllString(given, -1), launcher.Args...)
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

// TestDeploySweep: the points of a sweep, made as an array of Slurm and as an indexed Job
// make them, by the shell and with the variable that tells each its number, are gathered
// to what one process prints, with the largest batch that fits.
func TestDeploySweep(t *testing.T) {
	f := newFolder(t)
	// The file is a forward model with free sizes, whose graphs jobs derive beside it at once.
	f.do("model", "gpt2-tiny", "--batch", "0", "--seq", "0", "-o", f.at("my model.onnx"))
	sweep := []string{"sweep", f.at("my model.onnx"), "--batch", "1,2", "--seq", "16", "--strategy", "none,optimal", "--optimizer", "sgd", "--limit", "1600KiB", "--json", "--quiet"}
	want := f.do(sweep...)

	var j job
	readDeployed(t, "sweep.yaml", &j, func() []podTemplate { return []podTemplate{j.Spec.Template} })
	point := j.Spec.Template.Spec.Containers[0]
	if j.APIVersion != "batch/v1" || j.Kind != "Job" || j.Spec.CompletionMode != "Indexed" || j.Spec.Template.Spec.RestartPolicy != "Never" || j.Spec.Parallelism > j.Spec.Completions || j.Spec.BackoffLimitPerIndex < 1 {
		t.Fatalf("%+v", j)
	}
	slurm, err := filepath.Abs(filepath.Join("..", "..", "deploy", "sweep.slurm"))
	if err != nil {
		t.Fatal(err)
	}
	bin := f.at("bin")
	program, err := os.Executable()
	if err == nil {
		err = os.Mkdir(bin, 0o777)
	}
	if err == nil { // the test's binary is remat under that name; see TestMain
		err = os.Symlink(program, filepath.Join(bin, "remat"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, array := range map[string]struct {
		command  []string
		variable string
		from     int
	}{
		"slurm": {[]string{"bash", slurm, "sweep.jobs"}, "SLURM_ARRAY_TASK_ID", 1},
		"job":   {append(slices.Clone(point.Command), point.Args...), "JOB_COMPLETION_INDEX", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			jobs := filepath.Join(dir, "sweep.jobs")
			with := append(slices.Clone(sweep), "--jobs", jobs)
			f.do(with...)
			text, err := os.ReadFile(jobs)
			if lines := strings.Count(string(text), "\n"); err != nil || lines != 4 {
				t.Fatalf("%d lines: %v", lines, err)
			}
			var running []*exec.Cmd
			for n := range 4 {
				cmd := exec.Command(array.command[0], array.command[1:]...)
				cmd.Dir, cmd.Stderr = dir, os.Stderr
				cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", array.variable, n+array.from), "PATH="+bin+":"+os.Getenv("PATH"))
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				running = append(running, cmd)
			}
			for n, cmd := range running {
				if err := cmd.Wait(); err != nil {
					t.Errorf("point %d: %v", n+1, err)
				}
			}
			if got := f.do(append(with, "--collect")...); !bytes.Equal(got, want) {
				t.Errorf("gathered:\n%s\nmade by one process:\n%s", got, want)
			}
		})
	}
	if left, _ := filepath.Glob(f.at(".*")); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}
