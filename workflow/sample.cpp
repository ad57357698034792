#include "workflow/sample.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/philox.h"
#include "profiler/host.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/trainer/generator.h"
#include "workflow/run_tokenizer.h"

namespace foresail {
namespace {

constexpr int64_t kMostContext = 1024;
constexpr int64_t kMostTokens = 1'000'000;
constexpr uint64_t kStream = 0x73616d706c65;  // keeps these draws apart from other uses of a seed

/// A step-N folder itself, or the newest complete checkpoint of a run.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path))
    throw_bad_input(path.string(), "it does not exist", "name a step-N folder or a run folder");
  if (std::filesystem::exists(path / kManifestName)) return path;
  return checkpoint_to_resume(path, std::nullopt).path;
}

void check_options(const TextOptions& options) {
  if (options.tokens < 0 || options.tokens > kMostTokens) {
    throw_bad_input("--tokens", fmt::format("{} is not between 0 and {}", options.tokens, kMostTokens),
                    "ask for fewer");
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    throw_bad_input("--temperature", "it is negative or not finite",
                    "use 0 for the most likely text, 1 for the model's own");
  }
}

}  // namespace

TextResult sample(const TextOptions& options, const std::function<void(const std::string&)>& emit) {
  check_options(options);
  const Checkpoint checkpoint(resolve_checkpoint(options.checkpoint));
  checkpoint.check_files();
  TextCoder coder(checkpoint, options.tokenizer);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<int32_t> ids = coder.encode(options.prompt);
  // Without a prompt the text begins where a document does.
  if (ids.empty()) ids.push_back(coder.end_of_document());
  const int64_t context = std::min(kMostContext, static_cast<int64_t>(ids.size()) + options.tokens);
  Generator generator(checkpoint, context, options.threads > 0 ? options.threads : cores_of_host());
  const auto known = static_cast<size_t>(std::min(generator.model().vocabulary, coder.vocabulary()));
  if (std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= static_cast<int32_t>(known); })) {
    throw_bad_input("--prompt", "it holds tokens beyond the model's vocabulary", "give another prompt");
  }
  TextResult result{.text = options.prompt, .tokens = 0, .seconds = 0};
  const auto say = [&](const std::string& piece) {
    result.text += piece;
    if (emit && !piece.empty()) emit(piece);
  };
  for (; result.tokens < options.tokens; ++result.tokens) {
    const auto scores = generator.next_scores(ids).first(known);  // padding ids stand for no text
    const auto bits = random_bits(static_cast<uint64_t>(options.seed), kStream, static_cast<uint64_t>(result.tokens));
    const int32_t id = draw(scores, options.temperature, uniform_from_bits(bits));
    if (id == coder.end_of_document()) break;
    ids.push_back(id);
    say(coder.next(id));
  }
  say(coder.finish());
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace foresail
