// foresail sample CHECKPOINT --prompt TEXT
#include <iostream>
#include <limits>
#include <memory>

#include "cli/flags.h"
#include "cli/verb.h"
#include "workflow/sample.h"

namespace foresail {

std::function<Exit()> add_sample(CLI::App& app, const RankEnvironment&) {
  struct Flags {
    TextOptions options;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  TextOptions& options = flags->options;
  add_path(app, "CHECKPOINT", options.checkpoint, "A step-N folder")->required();
  app.add_option("--prompt", options.prompt, "The text to continue")->required();
  add_path(app, "--tokenizer", options.tokenizer,
           "The tokenizer.json that the model was trained with (default: the copy in its run's folder)");
  add_count(app, "--tokens", options.tokens, "How many tokens to draw (default: 200)");
  app.add_option("--temperature", options.temperature, "0: always the most likely token (default: 0.8)")
      ->check(CLI::Range(0.0, 100.0))
      ->type_name("NUMBER");
  app.add_option("--seed", options.seed, "The same seed draws the same text (default: 1)")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->type_name("N");
  app.add_option("--threads", options.threads, "Threads (default: all cores)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  add_json(app, flags->json);
  add_example(app, "foresail sample run/checkpoints/step-300 --prompt \"In the beginning\" --tokens 200");
  return [flags] {
    if (flags->json) {
      std::cout << text_result_to_json(sample(flags->options));
      return Exit::done;
    }
    bool begun = false;  // the prompt is shown once the checkpoint has proved to be one
    sample(flags->options, [&](const std::string& piece) {
      if (!begun) std::cout << flags->options.prompt;
      begun = true;
      std::cout << piece << std::flush;
    });
    std::cout << "\n";
    return Exit::done;
  };
}

}  // namespace foresail
