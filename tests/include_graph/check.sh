#!/usr/bin/env bash
# check.sh ROOT: does every file include only what its room may see? Prints one line per violation and fails if there is
# any. Data flows down the rooms and never back up. Also: nlohmann/json only through core/json.h in *_json files (and tests,
# which read the documents we write), and no source file over 500 lines.
set -euo pipefail
cd "${1:?usage: check.sh ROOT}"

rooms=(core spec ops models program kernels comm planner runtime profiler workflow cli tests bench)
present=()
for room in "${rooms[@]}"; do
  if [[ -d $room ]]; then present+=("$room"); fi
done
mapfile -t files < <(find "${present[@]}" \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -type f |
  sort)
if ((${#files[@]} == 0)); then
  echo "include graph: no sources under $PWD" >&2
  exit 1
fi

awk '
function allow(room, list,   i, n, parts) {
  n = split(list, parts, " ")
  allowed[room, room] = 1
  for (i = 1; i <= n; ++i) allowed[room, parts[i]] = 1
}
# The room of a path: its folder, or its two folders where sub-rooms have borders of their own.
function room_of(path,   parts, n) {
  n = split(path, parts, "/")
  if (n > 2 && parts[1] ~ /^(planner|runtime|kernels|comm)$/) return parts[1] "/" parts[2]
  return parts[1]
}
function report(text) { print text; bad = 1 }
BEGIN {
  program = "program models ops spec core"
  executor = program " kernels kernels/reference kernels/cpu kernels/cuda comm comm/local comm/mpi comm/nccl"
  allow("core", "")
  allow("spec", "core")
  allow("ops", "core")
  allow("models", "ops core")
  allow("program", program)
  allow("kernels", "ops core")
  split("reference cpu cuda", back_ends, " ")
  for (i in back_ends) allow("kernels/" back_ends[i], "kernels ops core")
  allow("comm", "spec core")
  split("local mpi nccl", engines, " ")
  for (i in engines) allow("comm/" engines[i], "comm spec core")
  allow("planner/simulator", program)
  allow("planner/budget", "planner/simulator " program)
  allow("planner/search", "planner/simulator planner/budget " program)
  allow("planner/explain", "planner/simulator planner/budget planner/search " program)
  allow("planner/export", "planner/simulator planner/budget planner/search " program)
  allow("runtime/launch", "core")
  allow("runtime/io", "core")
  allow("runtime/tokenizer", "core")
  allow("runtime/executor", executor)
  split("data checkpoint metrics health", parts_of_runtime, " ")
  for (i in parts_of_runtime) allow("runtime/" parts_of_runtime[i], "runtime/io runtime/executor " executor)
  allowed["runtime/data", "runtime/tokenizer"] = 1
  allow("runtime/trainer",
        "runtime/io runtime/data runtime/checkpoint runtime/metrics runtime/health runtime/launch runtime/executor " executor)
  allow("profiler", "runtime/io runtime/data runtime/executor " executor)
  split("workflow cli tests bench", tops, " ")  # these see every room; workflow never sees cli
  for (i in tops) top[tops[i]] = 1
}
FNR == 1 { room = room_of(FILENAME); is_json = FILENAME ~ /json[^\/]*$/ }
{ lines[FILENAME] = FNR }
/^[ \t]*#[ \t]*include[ \t]*</ {
  if ($0 ~ /<nlohmann\// && FILENAME !~ /^core\//) report(FILENAME ":" FNR ": nlohmann/json is included through core/json.h only")
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
  split($0, quoted, "\"")
  target = quoted[2]
  to = room_of(target)
  if (target ~ /^hwy\//) next  # Highway documents quoted includes for its per-target recompilation
  if (target == "core/json.h" && room != "core" && room != "tests" && !is_json)
    report(FILENAME ":" FNR ": core/json.h belongs in *_json files only")
  if (room == "tests" && target !~ /\//) next  # a helper in the same folder
  if (target !~ /\// || system("test -e \"" target "\"") != 0) {
    report(FILENAME ":" FNR ": \"" target "\" is not a file below the project root")
  } else if (room in top) {
    if (room == "workflow" && to == "cli") report(FILENAME ":" FNR ": workflow may not include cli")
    if (room != "tests" && to == "tests") report(FILENAME ":" FNR ": product code may not include tests")
  } else if (!((room, to) in allowed)) {
    report(FILENAME ":" FNR ": " room " may not include " to " (" target ")")
  }
}
END {
  for (file in lines) {
    if (lines[file] > 500) report(file ": " lines[file] " lines, more than 500: split it by idea")
    else if (lines[file] > 450) print "warning: " file ": " lines[file] " lines, near the limit of 500"
  }
  exit bad
}' "${files[@]}"
echo "include graph: ${#files[@]} files are in order"
