// foresail checkpoint list | verify | scrub | diff | export | import
#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "cli/flags.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/transfer.h"

namespace foresail {
namespace {

struct Flags {
  std::filesystem::path path, second;
  std::string dtype;
  ExportOptions to;
  bool json = false;
};

std::string list_text(const std::vector<CheckpointEntry>& entries) {
  Table table({"step", "bytes", "state", "path"});
  for (const CheckpointEntry& entry : entries) {
    table.add({std::to_string(entry.step), grouped(entry.bytes),
               entry.complete ? "complete" : "incomplete: " + entry.problem, entry.path.string()});
  }
  return entries.empty() ? "no checkpoints\n" : table.text();
}

std::string verdicts_text(const std::vector<CheckpointVerdict>& verdicts) {
  std::string text;
  for (const CheckpointVerdict& verdict : verdicts) {
    for (const std::string& problem : verdict.problems) text += problem + "\n";
    const char* answer = verdict.sealed ? "damaged, " : "not verified, ";
    text += verdict.path + ": " + (verdict.passed() ? "sound, " : answer) + grouped(verdict.tensors) + " tensors and " +
            grouped(verdict.bytes) + " bytes verified\n";
  }
  return text.empty() ? "no checkpoints\n" : text;
}

std::string difference_text(const CheckpointDifference& difference) {
  if (difference.identical) return "identical: " + std::to_string(difference.tensors.size()) + " tensors\n";
  Table table({"tensor", "difference", "largest absolute", "largest relative"});
  for (const TensorDifference& tensor : difference.tensors) {
    if (tensor.identical) continue;
    const char* kind = tensor.only_in_first    ? "only in the first"
                       : tensor.only_in_second ? "only in the second"
                       : tensor.shapes_differ  ? "shapes differ"
                                               : "values differ";
    const bool compared = !tensor.only_in_first && !tensor.only_in_second && !tensor.shapes_differ;
    const auto figure = [&](double value) { return compared ? fmt::format("{:.3g}", value) : std::string("-"); };
    table.add({tensor.tensor, kind, figure(tensor.maximum_absolute), figure(tensor.maximum_relative)});
  }
  return table.text();
}

Exit verdict_of(const std::vector<CheckpointVerdict>& verdicts) {
  for (const CheckpointVerdict& verdict : verdicts) {
    if (!verdict.passed()) return Exit::answer_is_no;
  }
  return Exit::done;
}

Exit run_list(const Flags& flags) {
  require_run_folder(flags.path);
  const auto entries = list_checkpoints(flags.path);
  std::cout << (flags.json ? checkpoint_list_to_json(entries) : list_text(entries));
  return Exit::done;
}

Exit show(const std::vector<CheckpointVerdict>& verdicts, bool json) {
  std::cout << (json ? checkpoint_verdicts_to_json(verdicts) : verdicts_text(verdicts));
  return verdict_of(verdicts);
}

Exit run_verify(const Flags& flags) { return show({verify_checkpoint(flags.path)}, flags.json); }
Exit run_scrub(const Flags& flags) { return show(scrub_checkpoints(flags.path), flags.json); }

Exit run_diff(const Flags& flags) {
  const CheckpointDifference difference = diff_checkpoints(flags.path, flags.second);
  std::cout << (flags.json ? checkpoint_difference_to_json(difference) : difference_text(difference));
  return difference.identical ? Exit::done : Exit::answer_is_no;
}

std::string transfer_text(const TransferResult& result) {
  std::string text;
  for (const std::string& note : result.notes) text += note + "\n";
  if (result.conversion.rounded > 0) {
    text += fmt::format("{} of {} values were rounded\n", grouped(result.conversion.rounded),
                        grouped(result.conversion.elements));
  }
  return text + fmt::format("{}: {} tensors, {} parameters, {} bytes in {} file{}\n", result.path,
                            grouped(result.tensors), grouped(result.parameters), grouped(result.bytes),
                            result.files.size(), result.files.size() == 1 ? "" : "s");
}

Exit show(const TransferResult& result, bool json) {
  std::cout << (json ? transfer_result_to_json(result) : transfer_text(result));
  return Exit::done;
}

Exit run_export(const Flags& flags) {
  ExportOptions options = flags.to;
  if (!flags.dtype.empty()) options.dtype = dtype_from_name(flags.dtype);
  return show(export_checkpoint(flags.path, flags.second, options), flags.json);
}
Exit run_import(const Flags& flags) { return show(import_weights(flags.path, flags.second), flags.json); }

void add_export_flags(CLI::App& app, Flags& flags) {
  app.add_option("--dtype", flags.dtype, "f64, f32, bf16 or f16 (default: as the checkpoint has them)")
      ->check(CLI::IsMember({"f64", "f32", "bf16", "f16"}))
      ->type_name("TYPE");
  add_bytes(app, "--max-shard-bytes", flags.to.max_shard_bytes, "Tensors of one file together (default: 5GB)");
}

struct Part {
  const char *name, *summary, *first, *second, *example;
  Exit (*run)(const Flags&);
};

constexpr Part kParts[] = {
    {"list", "Steps, sizes and whether they are complete", "A run, or its checkpoints folder", nullptr,
     "foresail checkpoint list run/", run_list},
    {"verify", "Read every byte of a checkpoint and check its digests", "A step-N folder", nullptr,
     "foresail checkpoint verify run/checkpoints/step-100", run_verify},
    {"scrub", "Verify every checkpoint of a run; set damaged ones aside", "A run, or its checkpoints folder", nullptr,
     "foresail checkpoint scrub run/", run_scrub},
    {"diff", "Compare two checkpoints tensor by tensor; exit code 1 if they differ", "A step-N folder",
     "Another step-N folder", "foresail checkpoint diff a/checkpoints/step-50 b/checkpoints/step-50", run_diff},
    {"export", "Write the weights as Hugging Face has them: config.json and safetensors", "A step-N folder",
     "The folder to write", "foresail checkpoint export run/checkpoints/step-100 weights/", run_export},
    {"import", "Make a checkpoint of Hugging Face weights", "A folder with config.json and safetensors",
     "The step folder to write", "foresail checkpoint import weights/ imported/step-0", run_import},
};

}  // namespace

std::function<Exit()> add_checkpoint(CLI::App& app, const RankEnvironment&) {
  const auto flags = std::make_shared<Flags>();
  add_example(app, "foresail checkpoint list run/");
  for (const Part& part : kParts) {
    CLI::App* sub = app.add_subcommand(part.name, part.summary);
    add_path(*sub, part.second ? "PATH1" : "PATH", flags->path, part.first)->required();
    if (part.second) add_path(*sub, "PATH2", flags->second, part.second)->required();
    if (part.run == run_export) add_export_flags(*sub, *flags);
    add_json(*sub, flags->json);
    add_example(*sub, part.example);
  }
  return [flags, &app] {
    for (const Part& part : kParts) {
      if (app.got_subcommand(part.name)) return part.run(*flags);
    }
    throw_bad_input("foresail checkpoint", "it does not say what to do",
                    "add list, verify, scrub, diff, export or import");
  };
}

}  // namespace foresail
