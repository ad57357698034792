// Bytes of text per second through a tokenizer.json: bench_tokenizer TOKENIZER.JSON TEXT [--benchmark_...]. Every round
// starts with empty caches; pieces are cut as `data prepare` does.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/parallel.h"
#include "runtime/tokenizer/encoder.h"

namespace foresail {
namespace {

constexpr size_t kPieceBytes = size_t{64} << 10;

std::vector<std::string> pieces_of(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t cut = std::min(find_cut(tokenizer, text, kPieceBytes), text.size());
    pieces.emplace_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  return pieces;
}

void encode_all(benchmark::State& state, const Tokenizer& tokenizer, const std::vector<std::string>& pieces) {
  set_thread_count(static_cast<int>(state.range(0)));
  std::vector<std::vector<int32_t>> ids;
  int64_t bytes = 0, tokens = 0;
  for (const std::string& piece : pieces) bytes += std::ssize(piece);
  for (auto _ : state) {
    ParallelEncoder encoder(tokenizer);
    encoder.encode(pieces, ids);
    benchmark::DoNotOptimize(ids.data());
  }
  for (const auto& list : ids) tokens += std::ssize(list);
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["bytes_per_token"] = static_cast<double>(bytes) / static_cast<double>(tokens);
}

void run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 3) throw_bad_input("bench_tokenizer", "it needs two files", "bench_tokenizer TOKENIZER.JSON TEXT");
  const Tokenizer tokenizer = load_tokenizer(argv[1]);
  const std::vector<std::string> pieces = pieces_of(tokenizer, read_file(argv[2]));
  benchmark::RegisterBenchmark("encode", [&](benchmark::State& state) { encode_all(state, tokenizer, pieces); })
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->MeasureProcessCPUTime()  // the second column: of all threads
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
}

}  // namespace
}  // namespace foresail

int main(int argc, char** argv) {
  try {
    foresail::run(argc, argv);
  } catch (const foresail::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit());
  }
  return 0;
}
