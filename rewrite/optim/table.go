package optim

// The optimizers, a row each, in a file each. To add one, write a file with its
// row, name it in table below, and give it a case in cases of optim_test.go: flags,
// their help and their messages, the state, what an accumulated or a skipped step
// leaves, and the updates come from the row.

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// A Kind is an optimizer.
type Kind string

// The optimizers.
const (
	None       Kind = "none"
	SGD        Kind = "sgd"
	AdamW      Kind = "adamw"
	AdamW8bit  Kind = "adamw8bit"
	Lion       Kind = "lion"
	Adafactor  Kind = "adafactor"
	ApolloMini Kind = "apollo-mini"
	Muon       Kind = "muon"
)

// table lists the optimizers in the order of the help.
var table = []*row{&sgd, &adamw, &adamw8bit, &lion, &adafactor, &apolloMini, &muon}

// A row is what there is to know of one optimizer.
type row struct {
	kind Kind
	// settings are the numbers that it reads, and what they are by default.
	settings []defaulted
	// rate is one that a model learns with from its first step on.
	rate float64
	// state lists the tensors that it keeps of a parameter.
	state func(a *applier, p *onnx.Value) []held
	// decays reports that weight decay scales the parameter itself, by 1 - lr·decay.
	decays func(o *Options) bool
	// scalars declares what depends on lr, step and factor alone, and returns the
	// rate of an update, float64. Factor is what every gradient is multiplied by,
	// float32, nil for 1.
	scalars func(a *applier, lr, step, factor *onnx.Value) *onnx.Value
	// update makes the next values of one parameter and its state.
	update func(u *updater)
}

// held is a tensor of state, P.name.
type held struct {
	name string
	onnx.Type
}

// stateNames are those of all tensors of state that an optimizer may keep of a parameter.
var stateNames = []string{momentState, "v", "m_scale", "v_scale", "v_row", "v_col", "norm", accState}

// StateOf lists the names of all tensors that a state may hold of a parameter beside its value.
func StateOf(parameter string) []string {
	list := make([]string, len(stateNames))
	for i, name := range stateNames {
		list[i] = parameter + "." + name
	}
	return list
}

// alike are tensors of state of the parameter's type.
func alike(p onnx.Type, names ...string) []held {
	list := make([]held, len(names))
	for i, name := range names {
		list[i] = held{name, p}
	}
	return list
}

// defaulted is a setting with its default.
type defaulted struct {
	*Setting
	value float64
}

// A Setting is a number that optimizers are given, a flag of remat grad.
type Setting struct {
	// Name is the flag's; Doc says what the number is.
	Name, Doc string
	// It lies between 0 and most, and is less than most where it is open.
	most float64
	open bool
	// Of is its place among the options.
	Of func(*Options) *float64
}

// The settings, which optimizers share.
var (
	momentum    = Setting{"momentum", "share of the last update that the next one keeps", 1, false, func(o *Options) *float64 { return &o.Momentum }}
	weightDecay = Setting{"weight-decay", "decay of the weights", 1e6, false, func(o *Options) *float64 { return &o.WeightDecay }}
	beta1       = Setting{"beta1", "how slowly the first average moves", 1, true, func(o *Options) *float64 { return &o.Beta1 }}
	beta2       = Setting{"beta2", "how slowly the second average moves", 1, true, func(o *Options) *float64 { return &o.Beta2 }}
	relative    = Setting{"relative-step", "the rate is times the root mean square of the parameter, or times X where that is less; 0: the rate itself", 1e6, false, func(o *Options) *float64 { return &o.RelativeStep }}
	scale       = Setting{"scale", "the update of a matrix is times the root of X", 1e6, false, func(o *Options) *float64 { return &o.Scale }}
	hiddenOnly  = Setting{"hidden-only", "1: embeddings and a classifier's last matrix are updated as by AdamW; 0: as other matrices", 1, false, func(o *Options) *float64 { return &o.HiddenOnly }}
	eps         = Setting{"eps", "what is added to the root of the second moment", 1, false, func(o *Options) *float64 { return &o.Eps }}
)

// Settings lists those of all optimizers.
func Settings() []*Setting {
	return []*Setting{&momentum, &weightDecay, &beta1, &beta2, &eps, &relative, &scale, &hiddenOnly}
}

// Default is what the setting is where nothing else is asked for; false where the
// optimizer does not read it.
func (s *Setting) Default(k Kind) (float64, bool) {
	if r := k.row(); r != nil {
		for _, d := range r.settings {
			if d.Setting == s {
				return d.value, true
			}
		}
	}
	return 0, false
}

// Kinds lists the optimizers that read the setting.
func (s *Setting) Kinds() []Kind {
	var list []Kind
	for _, k := range Kinds() {
		if _, ok := s.Default(k); ok {
			list = append(list, k)
		}
	}
	return list
}

// check refuses a number outside the setting's range.
func (s *Setting) check(o *Options) error {
	name, v := strings.ReplaceAll(s.Name, "-", " "), *s.Of(o)
	if s.open && !(v >= 0 && v < s.most) {
		return fmt.Errorf("%s %v must be at least 0 and below %v", name, v, s.most)
	}
	if !(v >= 0 && v <= s.most) {
		return fmt.Errorf("%s %v must be between 0 and %v", name, v, s.most)
	}
	return nil
}

// Kinds lists the optimizers without None.
func Kinds() []Kind {
	list := make([]Kind, len(table))
	for i, r := range table {
		list[i] = r.kind
	}
	return list
}

// ParseKind reads the name of an optimizer; "" is None.
func ParseKind(s string) (Kind, error) {
	k := Kind(s)
	if s == "" || k == None {
		return None, nil
	}
	if k.row() == nil {
		return None, fmt.Errorf("unknown optimizer %q: want %s or %s", s, None, List(Kinds(), "or"))
	}
	return k, nil
}

// Lightest is the optimizer that keeps no state of a parameter by its defaults.
const Lightest = SGD

// row is nil for None and for what is no optimizer.
func (k Kind) row() *row {
	for _, r := range table {
		if r.kind == k {
			return r
		}
	}
	return nil
}

// Rate is a learning rate that a model learns with from its first step on; 0 for
// None.
func (k Kind) Rate() float64 {
	if r := k.row(); r != nil {
		return r.rate
	}
	return 0
}

// Defaults are the optimizer's settings where nothing else is asked for.
func Defaults(k Kind) Options {
	o := Options{Kind: k}
	if r := k.row(); r != nil {
		for _, d := range r.settings {
			*d.Of(&o) = d.value
		}
	}
	return o
}

// List writes optimizers as "a, b or c".
func List(kinds []Kind, last string) string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " " + last + " " + names[len(names)-1]
}
