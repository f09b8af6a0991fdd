#!/bin/bash
# Runs every fuzz target for the given time (2m where none is given), one after
# another. What a target finds stays under testdata/fuzz beside it.
#
# A graph's way through planning takes tens of milliseconds: an input that reaches
# something new is tried smaller ten times, not for Go's minute, and up to 64 MB of
# garbage may pile up.
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-2m}
export GOGC=${GOGC:-1600}
for dir in $(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do
	for target in $(go test "./$dir" -list '^Fuzz' | grep '^Fuzz'); do
		echo "$dir $target $time"
		go test "./$dir" -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 10x
	done
done
