package ort

// Runs, with run options: a tag, and an end when the context is done.

/*
#include <stdlib.h>
#include "api.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"
)

// RunOptions belong to one run after another.
type RunOptions struct{ ptr *C.OrtRunOptions }

// NewRunOptions makes options whose log level is fatal. An empty tag is none.
func NewRunOptions(tag string) (*RunOptions, error) {
	o := &RunOptions{}
	if err := statusError(C.ortCreateRunOptions(&o.ptr)); err != nil {
		return nil, err
	}
	if tag == "" {
		return o, nil
	}
	ctag := C.CString(tag)
	defer C.free(unsafe.Pointer(ctag))
	if err := statusError(C.ortRunTag(o.ptr, ctag)); err != nil {
		return nil, errors.Join(err, o.Close())
	}
	return o, nil
}

// Terminate ends the run that uses the options before its next node. It may
// be called from another goroutine, until Close.
func (o *RunOptions) Terminate() error { return statusError(C.ortTerminate(o.ptr, 1)) }

// Close releases the options.
func (o *RunOptions) Close() error {
	if o != nil && o.ptr != nil {
		C.ortReleaseRunOptions(o.ptr)
		o.ptr = nil
	}
	return nil
}

// Run executes the model once with what is bound. When ctx is done first, the
// run ends before its next node and the error wraps ctx's.
func (s *Session) Run(ctx context.Context, b *Binding, tag string) error {
	if s.ptr == nil || b.ptr == nil {
		return ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	o, err := NewRunOptions(tag)
	if err != nil {
		return err
	}
	defer o.Close()
	if ctx.Done() == nil {
		return statusError(C.ortRunWithBinding(s.ptr, o.ptr, b.ptr))
	}
	finished, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-ctx.Done():
			// Failing to end a run early is no failure of the run.
			_ = o.Terminate()
		case <-finished:
		}
	}()
	err = statusError(C.ortRunWithBinding(s.ptr, o.ptr, b.ptr))
	close(finished)
	<-watched
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("run: %w", context.Cause(ctx))
	}
	return err
}
