// Weights out to Hugging Face folders and back: every family, any strategy on either side, any type, one file or many.
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/checkpoint/transfer.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/checkpoint/thread_communicator.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

const std::vector<Quantity> kMaster = {Quantity::parameter, Quantity::master};

/// One model of each way in which families differ: transposed and stacked matrices, biases, norms of heads, ties.
std::vector<ModelSpec> all_models() {
  std::vector<ModelSpec> models;
  for (const char* name : {"llama", "gpt2", "qwen3", "uneven", "deep"}) models.push_back(testing::small_model(name));
  models.push_back(testing::small_llama());
  models.back().family = "mistral";
  models.push_back(testing::small_llama());
  models.back().family = "qwen2";
  models.back().qkv_bias = true;
  models.back().tied_embeddings = true;
  return models;
}

RankMemory memory_of(const ModelSpec& model, const Strategy& strategy, int rank, DType dtype) {
  const RankSlices slices = rank_slices(model, strategy, mesh_of(model, strategy).coordinate_of(rank));
  RankMemory memory;
  memory.dtype = dtype;
  memory.slices = slices.parameters;
  memory.state = slices.state;
  const auto end_of = [](const std::vector<ParameterSlice>& list) {
    int64_t end = 0;
    for (const ParameterSlice& slice : list) {
      end = std::max(end, slice.element_offset + (slice.row_end - slice.row_begin) * slice.row_stride);
    }
    return end + 5;
  };
  memory.elements = end_of(memory.slices);
  memory.state_elements = end_of(memory.state);
  return memory;
}

std::filesystem::path save(const ModelSpec& model, const std::string& strategy_text,
                           const std::filesystem::path& folder, DType dtype = DType::f32,
                           const std::vector<Quantity>& quantities = kAdamW) {
  const Strategy strategy = parse_strategy(strategy_text).strategy;
  const auto errors = run_ranks(static_cast<int>(strategy.devices()), [&](Communicator& communicator) {
    RankMemory memory = memory_of(model, strategy, communicator.rank(), dtype);
    memory.fill(quantities);
    const auto segments = memory.segments(quantities);
    RunState state = state_at(7);
    state.model_name = model.name;
    state.model_config = write_model_config(model);
    save_checkpoint({folder, state, segments, 3, 4096}, {&communicator, 0});
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy_text;
  return folder / "step-7";
}

double element_of(const SafetensorsFile& file, const TensorEntry& entry, int64_t index) {
  const DType dtype = dtype_from_safetensors(entry.type).value();
  std::vector<std::byte> bytes(static_cast<size_t>(size_of(dtype)));
  file.read(entry, index * size_of(dtype), bytes);
  double value = 0;
  widen_elements(bytes, dtype, std::span(&value, 1));
  return value;
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

/// Independent of how it was written: each tensor of the files, element by element, in the files' orientation.
void check_folder(const std::filesystem::path& folder, const ModelSpec& model, DType dtype) {
  const WeightFolder weights(folder);
  int64_t elements = 0;
  for (const auto& [name, place] : weights.tensors()) {
    EXPECT_EQ(place.entry->type, safetensors_type(dtype)) << name;
    EXPECT_EQ(place.file->metadata().at("format"), "pt");
    const bool turned =
        model.family == "gpt2" && place.entry->shape.size() == 2 && name.find(".h.") != std::string::npos;
    const int64_t columns = place.entry->shape.size() == 2 ? place.entry->shape[1] : 1;
    for (int64_t i = 0; i < place.entry->elements(); ++i) {
      const int64_t row = turned ? i % columns : i / columns, column = turned ? i / columns : i % columns;
      const auto expected = static_cast<float>(expected_value(name, Quantity::parameter, row, column));
      ASSERT_EQ(element_of(*place.file, *place.entry, i), expected) << name << " " << i;
    }
    elements += place.entry->elements();
  }
  EXPECT_EQ(elements, parameter_count(model)) << model.name;
  const ModelSpec read = parse_model_config(*weights.config(), "config.json");
  EXPECT_EQ(write_model_config(read), write_model_config(model));
}

/// Out, back in, and out again: values, names, files and configs.
void round_trip(const ModelSpec& model, int64_t shard_bytes) {
  const TemporaryFolder folder;
  const auto path = save(model, "dp=2,pp=2,zero_stage=1", folder.path());
  const TransferResult out = export_checkpoint(path, folder.path() / "hf", {{}, shard_bytes});
  EXPECT_EQ(out.parameters, parameter_count(model));
  EXPECT_EQ(out.conversion.rounded, 0);
  EXPECT_EQ(out.files.size() > 1, shard_bytes < parameter_count(model) * 4) << model.name;
  EXPECT_EQ(std::ssize(out.files) == out.tensors, shard_bytes == 1) << "one tensor to a file at least";
  check_folder(folder.path() / "hf", model, DType::f32);
  import_weights(folder.path() / "hf", folder.path() / "back");
  EXPECT_TRUE(verify_checkpoint(folder.path() / "back").passed());
  const Checkpoint back(folder.path() / "back");
  EXPECT_EQ(back.state().step, 0);
  EXPECT_EQ(back.manifest().parameters_digest, Checkpoint(path).manifest().parameters_digest);
  export_checkpoint(folder.path() / "back", folder.path() / "again", {{}, shard_bytes});
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "hf")) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(read_file(entry.path()), read_file(folder.path() / "again" / name)) << model.name << " " << name;
  }
}

TEST(Weights, EveryFamilyGoesOutAndComesBackBitByBit) {
  for (const ModelSpec& model : all_models()) round_trip(model, int64_t{1} << 40);
  round_trip(testing::small_gpt2(), 50000);
  round_trip(testing::small_llama(), 50000);
  round_trip(testing::small_qwen3(), 1);
}

/// Every strategy reads only its rectangles of the files, transposed ones too, and finds what one rank would find.
void restore_with(const ModelSpec& model, const std::string& strategy_text, const std::filesystem::path& hf,
                  const std::string& digest) {
  const Strategy strategy = parse_strategy(strategy_text).strategy;
  const auto errors = run_ranks(static_cast<int>(strategy.devices()), [&](Communicator& communicator) {
    RankMemory memory = memory_of(model, strategy, communicator.rank(), DType::f32);
    const auto segments = memory.segments(kMaster);
    const RestoredWeights restored = restore_weights(hf, model, segments, {&communicator, 0});
    EXPECT_EQ(memory.wrong({Quantity::parameter}), "") << strategy_text << ", rank " << communicator.rank();
    EXPECT_EQ(restored.parameters_digest, digest) << strategy_text;
    EXPECT_EQ(restored.conversion.rounded, 0);
    for (const ParameterSlice& slice : memory.state) {  // the master copy has the file's values, not its own
      const auto expected =
          static_cast<float>(expected_value(slice.tensor, Quantity::parameter, slice.row_begin, slice.column_begin));
      EXPECT_EQ(memory.at(Quantity::master, slice.element_offset), expected) << slice.tensor;
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy_text;
}

TEST(Weights, EveryStrategyFindsItsPartOfTheFiles) {
  ModelSpec tied = testing::small_gpt2();
  tied.heads = tied.kv_heads = 6;
  tied.head_dim = 8, tied.hidden = 48, tied.ffn = 50;
  for (const ModelSpec& model : {tied, testing::small_uneven()}) {
    const TemporaryFolder folder;
    const auto path = save(model, "dp=1", folder.path());
    export_checkpoint(path, folder.path() / "hf", {{}, 30000});
    const std::string digest = Checkpoint(path).manifest().parameters_digest;
    for (const char* strategy :
         {"dp=1", "tp=3", "dp=2,tp=2,zero_stage=3", "pp=2,virtual_stages=2,schedule=interleaved", "dp=3,zero_stage=3",
          "dp=2,pp=2,virtual_stages=2,schedule=zb-v,zero_stage=3", "cp=2,tp=2,zero_stage=1"}) {
      restore_with(model, strategy, folder.path() / "hf", digest);
    }
  }
}

TEST(Weights, TheTypeOfTheFilesIsTheUsersChoiceAndLossIsCounted) {
  const TemporaryFolder folder;
  const ModelSpec model = testing::small_qwen3();
  const auto path = save(model, "tp=2", folder.path());
  const TransferResult wide = export_checkpoint(path, folder.path() / "f64", {DType::f64, 1 << 30});
  EXPECT_EQ(wide.conversion.rounded, 0);
  check_folder(folder.path() / "f64", model, DType::f64);
  const TransferResult narrow = export_checkpoint(path, folder.path() / "bf16", {DType::bf16, 1 << 30});
  EXPECT_GT(narrow.conversion.rounded, narrow.parameters / 2);
  EXPECT_NE(read_file(folder.path() / "bf16" / "config.json").find("\"torch_dtype\": \"bfloat16\""), std::string::npos);
  import_weights(folder.path() / "bf16", folder.path() / "step-0");
  EXPECT_EQ(Checkpoint(folder.path() / "step-0").manifest().tensors.front().dtype, DType::bf16);
  EXPECT_LT(diff_checkpoints(path, folder.path() / "step-0").maximum_relative, std::ldexp(1, -8));
}

TEST(Weights, AWiderTypeThanTheParametersComesFromTheMasterCopy) {
  const TemporaryFolder folder;
  const ModelSpec model = testing::small_llama();
  const Strategy strategy;
  RankMemory memory = memory_of(model, strategy, 0, DType::f32);
  memory.fill(kMaster);
  auto segments = memory.segments(kMaster);
  std::vector<std::byte> narrow(static_cast<size_t>(memory.elements) * 2);
  convert_elements({segments[0].data, narrow.size() * 2}, DType::f32, narrow.data(), DType::bf16, "x");
  segments[0].dtype = DType::bf16;
  segments[0].data = narrow.data();
  RunState state = state_at(7);
  state.model_config = write_model_config(model);
  save_checkpoint({folder.path(), state, segments, 3, 4096}, {});
  const auto first_of = [&](const char* name) {
    const WeightFolder weights(folder.path() / name);
    const auto& place = weights.tensors().at("model.norm.weight");
    return std::pair(place.entry->type, element_of(*place.file, *place.entry, 3));
  };
  export_checkpoint(folder.path() / "step-7", folder.path() / "own");
  export_checkpoint(folder.path() / "step-7", folder.path() / "wide", {DType::f32, 1 << 30});
  EXPECT_EQ(first_of("own").first, "BF16");
  const auto expected = static_cast<float>(expected_value("model.norm.weight", Quantity::master, 3, 0));
  EXPECT_EQ(first_of("wide"), std::pair(std::string("F32"), double{expected}));
  EXPECT_NE(first_of("own").second, static_cast<float>(expected_value("model.norm.weight", Quantity::parameter, 3, 0)));
  // A run in f32 takes the master copy too, not what was rounded from it.
  RankMemory loaded = memory_of(model, strategy, 0, DType::f32);
  const auto views = loaded.segments({Quantity::parameter});
  EXPECT_EQ(load_slices(Checkpoint(folder.path() / "step-7"), views, {.convert = true}).rounded, 0);
  const auto norm = std::find_if(loaded.slices.begin(), loaded.slices.end(),
                                 [](const ParameterSlice& slice) { return slice.tensor == "model.norm.weight"; });
  EXPECT_EQ(loaded.at(Quantity::parameter, norm->element_offset + 3), expected);
}

TEST(Weights, AValueThatTheTypeCannotHoldIsRefusedAndNothingIsLeft) {
  const TemporaryFolder folder;
  const ModelSpec model = testing::small_llama();
  RankMemory memory = memory_of(model, {}, 0, DType::f32);
  memory.fill({Quantity::parameter});
  memory.set(Quantity::parameter, memory.slices.back().element_offset, 1e6);
  const auto segments = memory.segments({Quantity::parameter});
  RunState state = state_at(7);
  state.model_config = write_model_config(model);
  save_checkpoint({folder.path(), state, segments, 3, 4096}, {});
  const std::string error = error_of([&] {
    export_checkpoint(folder.path() / "step-7", folder.path() / "f16", {DType::f16, 1 << 30});
  });
  EXPECT_NE(error.find("'" + memory.slices.back().tensor + "'"), std::string::npos) << error;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1) << "half-written";
}

TEST(Weights, NothingIsWrittenOverAndDamageIsNotExported) {
  const TemporaryFolder folder;
  const auto path = save(testing::small_llama(), "dp=1", folder.path(), DType::f32, {Quantity::parameter});
  write_file_atomically(folder.path() / "file", "x");
  EXPECT_NE(error_of([&] { export_checkpoint(path, folder.path()); }).find("not empty"), std::string::npos);
  EXPECT_NE(error_of([&] { export_checkpoint(path, folder.path() / "file"); }).find("is a file"), std::string::npos);
  std::filesystem::create_directory(folder.path() / "empty");
  export_checkpoint(path, folder.path() / "empty/");
  EXPECT_NE(error_of([&] { import_weights(folder.path() / "empty", path); }).find("not empty"), std::string::npos);
  std::string data = read_file(path / "rank-00000.safetensors");
  data[data.size() / 2] ^= 1;
  write_file_atomically(path / "rank-00000.safetensors", data);
  EXPECT_NE(error_of([&] { export_checkpoint(path, folder.path() / "hf"); }).find("is damaged in bytes"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "hf"));
}

TEST(Weights, TheConfigThatWeightsCameWithGoesOutWithThemUnlessTheModelChanged) {
  const TemporaryFolder folder;
  const auto path = save(testing::small_llama(), "dp=1", folder.path());
  const auto hf = folder.path() / "hf";
  export_checkpoint(path, hf);
  std::string config = read_file(hf / "config.json");
  config.insert(1, "\"eos_token_id_of_mine\": 7,");
  write_file_atomically(hf / "config.json", config);
  import_weights(hf, folder.path() / "step-0");
  export_checkpoint(folder.path() / "step-0", folder.path() / "out");
  EXPECT_NE(read_file(folder.path() / "out" / "config.json").find("eos_token_id_of_mine"), std::string::npos);
}

}  // namespace
}  // namespace foresail
