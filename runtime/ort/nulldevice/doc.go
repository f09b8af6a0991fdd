// Package nulldevice is a CUDA device of a size of choice that computes nothing,
// for machines without one.
//
//	ONNX Runtime's CUDA provider ──▶ libcudart, libcublas, … (elf.go: a few symbols each,
//	                                 made and loaded by this process)
//	                             ──▶ C functions of this program (cudart.c, cublas.c, cudnn.c)
//	                             ──▶ memory, copies, counters (memory.c)
//
// The stock provider places, allocates, copies and releases by shapes, not by
// values. So with a device whose memory is accounted for, whose small copies are real
// and whose kernels do nothing, it does the same as on a GPU, to the byte, and its
// figures can be measured anywhere. Results read as zeros or as what was there before: no
// number that comes back means anything.
//
// Weaknesses: workspaces that cuBLAS and cuDNN choose by the device are 0 here, and what a
// context or a handle of theirs takes from a real device is not counted. Kernels are chosen as for
// compute capability 9.0. What depends on values is that of the wrong values: the size of
// what NonZero finds, the branch of an If, the length of a Loop. The arena of ONNX Runtime takes a
// thirty-second of the device memory from the host, as it does with a real device.
package nulldevice
