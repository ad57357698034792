// foresail model MODEL
#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/verb.h"
#include "models/describe.h"

namespace foresail {

std::function<Exit()> add_model(CLI::App& app, const RankEnvironment&) {
  struct Flags {
    std::string model;
    int64_t sequence_length = 0;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  app.add_option("MODEL", flags->model, "A catalogue name (gpt2, llama-3-8b, ...) or a path to a config.json")
      ->required();
  add_count(app, "--seq-len", flags->sequence_length, "Tokens per sequence (default: the model's own)");
  add_json(app, flags->json);
  add_example(app, "foresail model llama-3-8b --seq-len 8192");
  return [flags] {
    const ModelSpec model = load_model(flags->model);
    const int64_t length = flags->sequence_length > 0 ? flags->sequence_length : model.max_positions;
    std::cout << (flags->json ? describe_model_json(model, length) : describe_model(model, length));
    return Exit::done;
  };
}

}  // namespace foresail
