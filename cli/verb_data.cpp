// foresail data prepare | inspect | verify
#include <iostream>
#include <memory>

#include <fmt/format.h>

#include "cli/flags.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "core/log.h"
#include "runtime/data/dataset.h"
#include "runtime/data/prepare.h"

namespace foresail {
namespace {

constexpr const char* kDataHelp =
    "Prefix of a .bin and an .idx file, or token shards of llm.c: a file, a folder, a prefix or a quoted pattern";

std::string histogram_text(const std::vector<LengthBin>& bins) {
  Table table({"tokens per document", "documents", "tokens"});
  for (const LengthBin& bin : bins) {
    table.add({bin.least == bin.most ? grouped(bin.least) : grouped(bin.least) + " to " + grouped(bin.most),
               grouped(bin.documents), grouped(bin.tokens)});
  }
  return table.text();
}

std::string tokenizer_text(const DatasetSummary& summary) {
  if (summary.info && !summary.info->tokenizer_name.empty()) {
    return summary.info->tokenizer + ", " + summary.info->tokenizer_name;
  }
  if (summary.info) return summary.info->tokenizer;
  if (!summary.origin.tokenizer.empty()) return summary.origin.tokenizer;
  return "unknown (no dataset.json)";
}

std::string share_text(int64_t part, int64_t whole) {
  return fmt::format("{} ({:.1f} %)", grouped(part), 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

std::string summary_text(const DatasetSummary& summary) {
  Table table({"", ""});
  const int64_t vocabulary = summary.info ? summary.info->vocabulary : summary.origin.vocabulary;
  table.add({"prefix", summary.prefix});
  table.add({"format", summary.origin.format});
  if (summary.counts.files > 1) table.add({"files", grouped(summary.counts.files)});
  table.add({"tokenizer", tokenizer_text(summary)});
  table.add({"vocabulary", vocabulary > 0 ? grouped(vocabulary) : "unknown (data verify finds the largest id)"});
  table.add({"token type", summary.token_type});
  table.add({"tokens", grouped(summary.tokens)});
  table.add({"counted in the loss", share_text(summary.counted_tokens, summary.tokens)});
  if (const auto begin = summary.own_validation_begin) {
    table.add({"of these validation", grouped(summary.tokens - *begin)});
  }
  table.add(
      {"documents", summary.counts.documents ? grouped(*summary.counts.documents) : "add --lengths to count them"});
  table.add({"bytes", grouped(summary.bin_bytes)});
  if (!summary.document_lengths) return table.text() + "\nLengths of documents: add --lengths to compute them.\n";
  return table.text() + "\n" + histogram_text(*summary.document_lengths);
}

std::function<Exit()> add_prepare(CLI::App& app) {
  struct Flags {
    PrepareOptions options;
    std::vector<std::string> inputs;
    std::string split = "file", format = "auto";
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  app.add_option("IN", flags->inputs, "Text or JSONL files, plain, gzip or zstd")->required();
  app.add_option("--tokenizer", flags->options.tokenizer,
                 "bytes, or a tokenizer.json of byte-level BPE (GPT-2, Llama 3, Qwen)")
      ->required();
  app.add_option(
         "--end-of-document", flags->options.end_of_document,
         "The added token that ends documents (default: eos_token of the tokenizer_config.json beside it, or its "
         "only special token)")
      ->type_name("TOKEN");
  add_path(app, "--out", flags->options.out,
           "Prefix of the .bin, .idx and .dataset.json files, and of .mask if there are prompts")
      ->required();
  app.add_option("--split", flags->split,
                 "What a document of a text file is: file, line or blank-lines (default: file)");
  app.add_option("--format", flags->format, "auto, text or jsonl (default: by the file's name)");
  add_json(app, flags->json);
  add_example(app, "foresail data prepare bible.txt --tokenizer bytes --out bible");
  return [flags] {
    PrepareOptions& options = flags->options;
    options.inputs.assign(flags->inputs.begin(), flags->inputs.end());
    options.split = document_split_from_name(flags->split);
    options.format = text_format_from_name(flags->format);
    options.progress = [](const PrepareProgress& progress) {
      log_info("{}: {} MB of text, {} documents, {} tokens", progress.file, progress.text_bytes / 1000000,
               progress.documents, progress.tokens);
    };
    const DatasetInfo info = prepare_dataset(options);
    if (flags->json) {
      std::cout << dataset_info_to_json(info);
    } else {
      std::cout << summary_text(inspect_dataset(options.out));
    }
    return Exit::done;
  };
}

std::function<Exit()> add_inspect(CLI::App& app) {
  struct Flags {
    std::filesystem::path data;
    bool lengths = false, json = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_path(app, "PREFIX", flags->data, kDataHelp)->required();
  app.add_flag("--lengths", flags->lengths,
               "Compute the lengths of documents where no dataset.json states them; reads all tokens of token shards");
  add_json(app, flags->json);
  add_example(app, "foresail data inspect bible");
  return [flags] {
    const DatasetSummary summary = inspect_dataset(flags->data, flags->lengths);
    std::cout << (flags->json ? dataset_summary_to_json(summary) : summary_text(summary));
    return Exit::done;
  };
}

std::function<Exit()> add_verify(CLI::App& app) {
  struct Flags {
    std::filesystem::path prefix;
    bool json = false;
  };
  const auto flags = std::make_shared<Flags>();
  add_path(app, "PREFIX", flags->prefix, kDataHelp)->required();
  add_json(app, flags->json);
  add_example(app, "foresail data verify bible");
  return [flags] {
    const DatasetVerdict verdict = verify_dataset(flags->prefix);
    if (flags->json) {
      std::cout << dataset_verdict_to_json(verdict);
    } else {
      for (const std::string& problem : verdict.problems) std::cout << problem << "\n";
      std::cout << (verdict.passed() ? "sound: " : "damaged: ") << grouped(verdict.tokens) << " tokens checked\n";
    }
    return verdict.passed() ? Exit::done : Exit::answer_is_no;
  };
}

}  // namespace

std::function<Exit()> add_data(CLI::App& app, const RankEnvironment&) {
  add_example(app, "foresail data prepare bible.txt --tokenizer bytes --out bible");
  CLI::App* prepare = app.add_subcommand("prepare", "Text or JSONL to a token dataset");
  CLI::App* inspect = app.add_subcommand("inspect", "Tokens, documents and their lengths");
  CLI::App* verify = app.add_subcommand("verify", "Read everything and check it against its digests");
  return [prepare, inspect, verify, run_prepare = add_prepare(*prepare), run_inspect = add_inspect(*inspect),
          run_verify = add_verify(*verify)] {
    if (prepare->parsed()) return run_prepare();
    if (inspect->parsed()) return run_inspect();
    if (verify->parsed()) return run_verify();
    throw_bad_input("foresail data", "it does not say what to do", "add prepare, inspect or verify");
  };
}

}  // namespace foresail
