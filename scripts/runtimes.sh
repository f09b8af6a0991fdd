#!/bin/bash
# Installs the runtimes that the examples are tested in, beside those that the tests find
# by themselves: onnxruntime-node and onnxruntime-web by npm, Java's by Maven, into the
# user's cache or REMAT_RUNTIMES. Chromium comes from the system.
set -euo pipefail
cd "$(dirname "$0")/.."
to=${REMAT_RUNTIMES:-${XDG_CACHE_HOME:-$HOME/.cache}/remat/runtimes}
mkdir -p "$to/npm"
echo '{"private": true}' > "$to/npm/package.json"
# The variable leaves out CUDA's libraries, which are fetched from elsewhere.
ONNXRUNTIME_NODE_INSTALL=skip npm install --prefix "$to/npm" --no-audit --no-fund onnxruntime-node@1.30.0 onnxruntime-web@1.30.0
mvn -q -B -f examples/java/pom.xml dependency:copy-dependencies -DoutputDirectory="$to/java"
command -v chromium > /dev/null || echo "no chromium: the browser's test is skipped; apt-get install chromium"
echo "$to"
