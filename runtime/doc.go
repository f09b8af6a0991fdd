// Package runtime runs models in ONNX Runtime and measures what a step costs.
//
//	Engine    the loaded library and the provider that was chosen
//	Session   a model with its inputs bound: feeds, mapped parameters, random
//	Step      one run: seconds, outputs, live peak exact to the byte
//	Profile   where the time and the memory of the nodes go
//	Optimize  a model as ONNX Runtime's own optimizer leaves it
//
// Parameters are graph inputs bound to mapped files: they are held once and
// never copied. Memory is measured by the definitions of the command line's
// contract: see memory.go.
package runtime
