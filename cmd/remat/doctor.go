package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
	"github.com/onnx-remat/remat/runtime/ortversion"
)

func doctorCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "checks the machine, and says how to fix what is missing",
		ArgsUsage: " ",
		Description: "Checks the ONNX Runtime library, its providers, the GPU and the memory, and tries\n" +
			"the facts about ONNX Runtime that every prediction rests on.\n\nExample: remat doctor",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "install", Usage: "install the ONNX Runtime library first: `cpu|cuda|cuda-libraries`"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("remat doctor: unexpected argument %q", c.Args().First())
			}
			return runDoctor(e, c.String("install"), c.IsSet("install"))
		},
	}
}

// A finding is one thing looked at.
type finding struct {
	What string `json:"what"`
	Is   string `json:"is"`
	OK   bool   `json:"ok"`
	Fix  string `json:"fix,omitempty"`
}

// runDoctor installs a library where one is wanted, and prints what is here.
func runDoctor(e *env, kind string, wanted bool) error {
	if wanted {
		build, err := e.build(kind)
		if err != nil {
			return err
		}
		path, err := install.Install(e.ctx, build, e.stderr)
		if err != nil {
			return err
		}
		if e.ort == "" && os.Getenv(install.EnvVar) == "" {
			e.ort = path
		}
	}
	findings := append(libraryFindings(e), gpuFindings()...)
	findings = append(findings, rehearsalFinding(e), memoryFinding())
	if e.json {
		return report.WriteJSON(e.stdout, map[string]any{"version": version, "findings": findings})
	}
	for _, f := range findings {
		mark := "ok "
		if !f.OK {
			mark = "-- "
		}
		fmt.Fprintf(e.stdout, "%s %-22s %s\n", mark, f.What, f.Is)
		if f.Fix != "" {
			fmt.Fprintf(e.stdout, "    %-22s %s\n", "", f.Fix)
		}
	}
	return nil
}

// build is the build that --install asks for: NVIDIA's libraries, which are large,
// are of no use without a driver, nor in a rehearsal.
func (e *env) build(kind string) (install.Kind, error) {
	switch kind {
	case "cpu":
		return install.CPU, nil
	case "cuda-libraries":
		return install.CUDA, nil
	case "cuda":
	default:
		return "", fmt.Errorf("--install %q: want cpu, cuda or cuda-libraries", kind)
	}
	if e.rehearse {
		return install.Rehearsal, nil
	}
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		fmt.Fprintln(e.stderr, "no NVIDIA driver here: leaving NVIDIA's libraries out; --install cuda-libraries gets them too")
		return install.Rehearsal, nil
	}
	return install.CUDA, nvmlClosed()
}

func nvmlClosed() error {
	if ret := nvml.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("closing NVIDIA's management library: %s", nvmlError(ret))
	}
	return nil
}

// rehearsalFinding says whether CUDA's provider can run without a GPU.
func rehearsalFinding(e *env) finding {
	const what, fix = "rehearsal", "remat doctor --install cuda"
	path, err := install.FindRehearsal(e.ort)
	if err == nil {
		err = nulldevice.Check(path)
	}
	if err != nil {
		return finding{what, "not possible: " + err.Error(), false, fix}
	}
	if !e.rehearse {
		return finding{what, "possible, with --rehearse --provider cuda and " + path, true, ""}
	}
	engine, err := e.engine()
	if err == nil {
		err = engine.TryCUDA(e.device)
	}
	if err != nil {
		return finding{what, err.Error(), false, fix}
	}
	return finding{what, "works; " + report.NoNumbers, true, ""}
}

// libraryFindings are about ONNX Runtime: the library, its providers, and the measured
// facts that planning rests on.
func libraryFindings(e *env) []finding {
	find := install.Find
	if e.rehearse {
		find = install.FindRehearsal
		if _, err := e.engine(); err != nil { // the null device comes before the provider
			return []finding{{"onnx runtime", err.Error(), false, "remat doctor --install cuda"}}
		}
	}
	path, err := find(e.ort)
	if err != nil {
		return []finding{{"onnx runtime", err.Error(), false, "remat doctor --install cpu"}}
	}
	environment, err := ort.Open(path)
	if err != nil {
		return []finding{{"onnx runtime", err.Error(), false, "remat doctor --install cpu, or name another library with --ort"}}
	}
	defer environment.Close()
	providers, err := environment.Providers()
	out := []finding{{"onnx runtime", environment.Version() + " at " + path, true, untried(environment.Version(), providers)}}
	if err != nil {
		return append(out, finding{"providers", err.Error(), false, ""})
	}
	out = append(out, finding{"providers", strings.Join(providers, ", "), true, ""})
	for _, c := range ort.Canary(environment) {
		f := finding{"fact: " + c.Name, "holds", c.Err == nil, ""}
		if c.Err != nil {
			f.Is = c.Err.Error()
			if _, ofFile := errors.AsType[*os.PathError](c.Err); !ofFile { // which says what to do about the folder
				f.Fix = fmt.Sprintf("use ONNX Runtime %s to %s: remat doctor --install cpu", ortversion.Oldest, ortversion.Newest)
			}
		}
		out = append(out, f)
	}
	if e.rehearse {
		return out
	}
	return append(out, cudaFinding(environment))
}

// untried says that a library with these providers is newer than what predictions were
// compared with; "" where it is not.
func untried(version string, providers []string) string {
	newest, kernels, kind := ortversion.Newest, "the CPU's", install.CPU
	if slices.Contains(providers, "CUDAExecutionProvider") {
		newest, kernels, kind = ortversion.Current, "CUDA's", install.CUDA
	}
	if !ortversion.Older(newest, version) {
		return ""
	}
	return fmt.Sprintf("newer than %s, the last whose memory on %s kernels was compared: see what remat run measures, or remat doctor --install %s", newest, kernels, kind)
}

// gpuFindings are about NVIDIA's driver and each GPU that it knows.
func gpuFindings() []finding {
	if ret := nvml.Init(); ret != nvml.SUCCESS {
		return []finding{{"gpu", "none found (" + nvmlError(ret) + ")", false, "to use a GPU, install NVIDIA's driver"}}
	}
	defer nvml.Shutdown()
	driver, _ := nvml.SystemGetDriverVersion()
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return []finding{{"gpu", nvmlError(ret), false, ""}}
	}
	var out []finding
	for i := range n {
		d, ret := nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		name, _ := d.GetName()
		mem, _ := d.GetMemoryInfo()
		out = append(out, finding{fmt.Sprintf("gpu %d", i),
			fmt.Sprintf("%s, %s of %s free, driver %s", name, units.Bytes(int64(mem.Free)), units.Bytes(int64(mem.Total)), driver), true, ""})
	}
	return out
}

// nvmlError names an error without calling into the library, which may not be
// there.
func nvmlError(ret nvml.Return) string {
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return "the driver's library libnvidia-ml.so.1 is not here"
	}
	return fmt.Sprintf("nvml error %d", int(ret))
}

func memoryFinding() finding {
	total, free := remat.HostMemory()
	return finding{"memory", fmt.Sprintf("%s of %s available, %d cores", units.Bytes(free), units.Bytes(total), runtime.NumCPU()), true, ""}
}

// cudaFinding tries the CUDA provider on the smallest graph there is.
func cudaFinding(environment *ort.Environment) finding {
	m := onnx.NewModel("probe", 17)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(1)))
	n := m.Graph.NewNode("", "Identity", "identity", []*onnx.Value{x}, []string{"y"})
	n.Outputs[0].Type = x.Type
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Outputs[0])
	data, err := m.Encode()
	if err == nil {
		var s *ort.Session
		if s, err = environment.NewSessionFromBytes(data, ort.SessionOptions{Provider: ort.CUDA}); err == nil {
			err = s.Close()
		}
	}
	if err != nil {
		return finding{"cuda provider", strings.TrimPrefix(err.Error(), "cuda provider: "), false, "remat doctor --install cuda, on a machine with an NVIDIA GPU"}
	}
	return finding{"cuda provider", "works", true, ""}
}
