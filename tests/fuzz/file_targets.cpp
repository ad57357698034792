#include <filesystem>
#include <fstream>
#include <regex>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/data/dataset.h"
#include "runtime/data/prepare.h"
#include "runtime/data/sample_source.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/fuzz/targets.h"

namespace foresail {
namespace {

// A new file each time: overwriting one in place makes some file systems flush.
void replace_file(const std::filesystem::path& path, const std::string& content) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << content;
}

void prepare_example(const std::filesystem::path& folder) {
  std::ofstream(folder / "in.txt") << "first document\n\nsecond\n\nthe third one is a little longer\n";
  std::ofstream(folder / "in.jsonl") << "{\"prompt\": \"what comes\", \"completion\": \"last\"}\n";
  PrepareOptions options;
  options.inputs = {folder / "in.txt", folder / "in.jsonl"};
  options.out = folder / "d";
  options.split = DocumentSplit::blank_lines;
  prepare_dataset(options);
}

// What training does with a dataset.
void use_dataset(const std::filesystem::path& path, int64_t vocabulary) {
  const auto data = open_dataset(path);
  data->each_document([](int64_t) {});
  check_vocabulary(*data, vocabulary);
  dataset_identity(*data);
  const SampleSource source(*data, {4, 0.2, 1, vocabulary}, DataPart::training);
  std::vector<int32_t> tokens(4), targets(4);
  for (int64_t i = 0; i < source.samples(); ++i) {
    source.read(i, tokens, targets);
    source.counted_targets(i);
    source.document_starts(i, tokens);
  }
  inspect_dataset(path, true);
}

/// `described`: with dataset.json beside it; without, as other programs write it.
FuzzTarget dataset_target(const std::string& suffix, Content kind, bool described) {
  const auto folder = std::make_shared<TemporaryFolder>();
  prepare_example(folder->path());
  const std::filesystem::path prefix = folder->path() / "d", path = prefix.string() + suffix;
  const std::string name = "dataset" + suffix + (described ? "" : ", not described");
  if (!described) std::filesystem::remove(dataset_info_path(prefix));
  return {name, kind, {read_file(path)}, [folder, prefix, path](const std::string& content) {
            replace_file(path, content);
            verify_dataset(prefix);
            use_dataset(prefix, kByteVocabulary);
          }};
}

// One of three shards is damaged: in the middle of training, or the one for validation.
FuzzTarget shard_target(const std::string& damaged) {
  const auto folder = std::make_shared<TemporaryFolder>();
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 40;
  std::vector<uint16_t> tokens(40, 11);
  tokens[0] = tokens[17] = 50256;
  const auto bytes = [](const auto& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
  };
  const std::string example = bytes(header) + bytes(tokens);
  for (const char* name : {"s_train_1.bin", "s_train_2.bin", "s_val_1.bin"})
    replace_file(folder->path() / name, example);
  return {"shard " + damaged, Content::bytes, {example}, [folder, damaged](const std::string& content) {
            replace_file(folder->path() / damaged, content);
            verify_dataset(folder->path());
            use_dataset(folder->path(), 50257);
          }};
}

void read_all(const SafetensorsFile& file) {
  std::vector<std::byte> buffer;
  for (const TensorEntry& entry : file.tensors()) {
    buffer.resize(static_cast<size_t>(entry.bytes));
    file.read(entry, 0, buffer);
    file.at(entry.name);
  }
}

FuzzTarget safetensors_target() {
  const auto folder = std::make_shared<TemporaryFolder>();
  const std::filesystem::path path = folder->path() / "w.safetensors";
  const std::vector<float> values(24, 1.5F);
  const auto bytes = std::as_bytes(std::span(values));
  const TensorInMemory tensors[] = {{"model.norm.weight", DType::f32, {4}, bytes.first(16)},
                                    {"model.embed.weight", DType::f64, {2, 5}, bytes.first(80)},
                                    {"scalar", DType::bf16, {}, bytes.first(2)}};
  write_safetensors(path, tensors, {{"format", "pt"}});
  const std::string example = read_file(path);
  return {"safetensors", Content::bytes, {example}, [folder, path](const std::string& content) {
            replace_file(path, content);
            read_all(SafetensorsFile(path));
          }};
}

// The header as JSON text, with its length mended, in front of the same data.
FuzzTarget safetensors_header_target() {
  FuzzTarget whole = safetensors_target();
  const std::string file = whole.examples.front();
  uint64_t length = 0;
  std::copy_n(file.begin(), 8, reinterpret_cast<char*>(&length));
  const std::string data = file.substr(8 + length);
  return {"safetensors header",
          Content::json,
          {file.substr(8, length)},
          [read = whole.read, data](const std::string& header) {
            const uint64_t bytes = header.size();
            read(std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + header + data);
          }};
}

void load_everything(const std::filesystem::path& path) {
  RankMemory memory = rank_memory(1, 1, 1, 0);
  const auto segments = memory.segments(kAdamW);
  load_slices(Checkpoint(path), segments, {});
}

bool has_digest(const std::string& manifest) {
  const std::string before = "\"manifest_digest\": \"";
  const size_t at = manifest.find(before);
  return at != std::string::npos && at + before.size() + 32 <= manifest.size();
}

FuzzTarget checkpoint_target(const std::string& file, Content kind, bool seal) {
  const auto folder = std::make_shared<TemporaryFolder>();
  save_from(folder->path(), 1, 1, 1, 2);
  const std::filesystem::path step = folder->path() / "step-1";
  const std::string name = "checkpoint " + file + (seal ? ", digest mended" : "");
  return {name, kind, {read_file(step / file)}, [folder, step, file, seal](const std::string& content) {
            replace_file(step / file, seal && has_digest(content) ? seal_manifest(content) : content);
            verify_checkpoint(step);
            load_everything(step);
          }};
}

// A checkpoint written by hand: nothing notices a change but the checks of what it says.
FuzzTarget unsealed_target() {
  const auto folder = std::make_shared<TemporaryFolder>();
  save_from(folder->path(), 1, 1, 1, 2);
  const std::filesystem::path step = folder->path() / "step-1";
  std::string text = read_file(step / kManifestName);
  text = std::regex_replace(text, std::regex("\"pieces\": \\[[^\\]]*\\]"), "\"pieces\": []");
  text = std::regex_replace(text, std::regex("digest\": \"[^\"]*\""), "digest\": \"none\"");
  return {"checkpoint by hand", Content::json, {text}, [folder, step](const std::string& content) {
            replace_file(step / kManifestName, content);
            load_everything(step);
          }};
}

// A tied model, so that the head may be there as a copy; two files, and what lies beside the weights of published models.
void write_weights(const std::filesystem::path& folder) {
  ModelSpec model = load_model("bytes-llama-11m");
  model.layers = 2, model.hidden = 8, model.heads = 2, model.kv_heads = 1, model.head_dim = 4, model.ffn = 6;
  model.vocabulary = 9;
  model.tied_embeddings = true;
  const std::vector<float> values(100, 0.25F);
  std::vector<TensorInMemory> files[2];
  size_t count = 0;
  const auto add = [&](const std::string& tensor, const std::vector<int64_t>& shape) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    const auto bytes = std::as_bytes(std::span(values).first(static_cast<size_t>(elements)));
    files[count++ % 2].push_back({tensor, DType::f32, shape, bytes});
  };
  for (const LogicalTensor& tensor : logical_tensors(model)) add(tensor.tensor, tensor.file_shape());
  add("lm_head.weight", {9, 8});
  add("model.layers.0.self_attn.rotary_emb.inv_freq", {2});
  WeightIndex index;
  for (const int file : {0, 1}) {
    const std::string name = "model-0000" + std::to_string(file + 1) + "-of-00002.safetensors";
    write_safetensors(folder / name, files[file], {{"format", "pt"}});
    for (const TensorInMemory& tensor : files[file]) index.files[tensor.name] = name;
  }
  std::ofstream(folder / kWeightIndexName) << weight_index_to_json(index);
  std::ofstream(folder / kModelConfigName) << write_model_config(model);
}

// What --init and import do with a folder of weights.
void use_weights(const std::filesystem::path& folder) {
  const WeightFolder opened(folder);
  const ModelSpec model = parse_model_config(opened.config().value(), (folder / kModelConfigName).string());
  const ModelWeights weights(folder, model);
  weights.notes();
  weights.check_head_copy();
  for (size_t i = 0; i < weights.tensors().size(); ++i) {
    for_each_band(weights.source(i), 64, [](const Rectangle&, std::span<const std::byte>) {});
  }
}

FuzzTarget weights_target(const std::string& file, Content kind) {
  const auto folder = std::make_shared<TemporaryFolder>();
  write_weights(folder->path());
  return {"weights " + file, kind, {read_file(folder->path() / file)}, [folder, file](const std::string& content) {
            replace_file(folder->path() / file, content);
            use_weights(folder->path());
          }};
}

}  // namespace

std::vector<FuzzTarget> file_targets() {
  return {dataset_target(".idx", Content::bytes, true),
          dataset_target(".bin", Content::bytes, true),
          dataset_target(".mask", Content::bytes, true),
          dataset_target(".dataset.json", Content::json, true),
          dataset_target(".idx", Content::bytes, false),
          dataset_target(".mask", Content::bytes, false),
          shard_target("s_train_2.bin"),
          shard_target("s_val_1.bin"),
          safetensors_target(),
          safetensors_header_target(),
          checkpoint_target("manifest.json", Content::json, false),
          checkpoint_target("manifest.json", Content::json, true),
          checkpoint_target("rank-00001.safetensors", Content::bytes, false),
          unsealed_target(),
          weights_target(kWeightIndexName, Content::json),
          weights_target(kModelConfigName, Content::json),
          weights_target("model-00001-of-00002.safetensors", Content::bytes)};
}

}  // namespace foresail
