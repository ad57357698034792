#!/usr/bin/env bash
# planted.sh CHECK: check.sh must accept a small tree in order, and refuse each of these faults planted into it.
set -euo pipefail
check=${1:?usage: planted.sh CHECK}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

plant() {  # FILE INCLUDE: a fresh tree in order, plus FILE with one include
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{core,spec,ops,program,planner/{simulator,search},runtime/{executor,data,tokenizer},kernels/{cpu,reference},comm,cli,workflow,tests}
  for header in core/error core/json spec/job ops/op program/program planner/simulator/simulator planner/search/search \
    runtime/executor/executor runtime/data/dataset runtime/tokenizer/tokenizer kernels/device kernels/cpu/cpu kernels/reference/reference comm/communicator cli/main \
    workflow/plan tests/support; do
    echo '#pragma once' >"$tree/$header.h"
  done
  printf '#include %s\n' "$2" >"$tree/$1"
}
accepted() {
  plant "$@"
  if ! bash "$check" "$tree" >"$tree.log"; then
    echo "refused, but legal: $1 includes $2"; cat "$tree.log"; rm -f "$tree.log"; exit 1
  fi
  rm -f "$tree.log"
}
refused() {
  plant "$@"
  if bash "$check" "$tree" >/dev/null; then echo "accepted, but planted: $1 includes $2"; exit 1; fi
}

accepted program/a.cpp '"spec/job.h"'
accepted spec/job_json.cpp '"core/json.h"'
accepted runtime/executor/a.cpp '"kernels/device.h"'
accepted runtime/data/a.cpp '"runtime/tokenizer/tokenizer.h"'
accepted planner/search/a.cpp '"planner/simulator/simulator.h"'
accepted workflow/a.cpp '"planner/search/search.h"'
accepted cli/a.cpp '"workflow/plan.h"'
accepted kernels/cpu/a.cpp '"hwy/highway.h"'
refused core/a.cpp '"spec/job.h"'
refused spec/a.cpp '"ops/op.h"'
refused ops/a.cpp '"spec/job.h"'
refused kernels/cpu/a.cpp '"program/program.h"'
refused kernels/cpu/a.cpp '"kernels/reference/reference.h"'
refused comm/a.cpp '"program/program.h"'
refused planner/search/a.cpp '"kernels/device.h"'
refused planner/search/a.cpp '"comm/communicator.h"'
refused planner/simulator/a.cpp '"planner/search/search.h"'
refused runtime/executor/a.cpp '"planner/simulator/simulator.h"'
refused runtime/tokenizer/a.cpp '"runtime/data/dataset.h"'
refused runtime/executor/a.cpp '"runtime/tokenizer/tokenizer.h"'
refused workflow/a.cpp '"cli/main.h"'
refused workflow/a.cpp '"tests/support.h"'
refused spec/job.cpp '"core/json.h"'
refused spec/job_json.cpp '<nlohmann/json.hpp>'
refused spec/a.cpp '"job.h"'
refused spec/a.cpp '"spec/missing.h"'

plant core/a.cpp '"core/error.h"'
for ((i = 0; i < 501; ++i)); do echo '//'; done >>"$tree/core/a.cpp"
if bash "$check" "$tree" >/dev/null; then echo "accepted, but planted: a file of 502 lines"; exit 1; fi
echo "include graph: every planted fault is refused"
