// Package remat rewrites ONNX training graphs so that training fits. The
// program is cmd/remat; ARCHITECTURE.md is the map of the packages.
package remat
