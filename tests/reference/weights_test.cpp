// Weights in the orientation and under the names of Hugging Face's own model sources give PyTorch's loss and gradients:
// what is imported is the model that was published, not only something that we export alike.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/file.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/reference/model_run.h"

namespace foresail::testing {
namespace {

/// The fixture's initial weights as a folder, f32, in the shapes that PyTorch's gradients have.
void write_folder(const Fixture& fixture, const std::filesystem::path& folder) {
  const SafetensorsFile shapes(fixture.folder / "gradients.safetensors");
  std::vector<std::vector<float>> values;
  std::vector<TensorInMemory> tensors;
  for (const TensorEntry& entry : shapes.tensors()) {
    std::vector<float>& own = values.emplace_back(static_cast<size_t>(entry.elements()));
    for (size_t i = 0; i < own.size(); ++i) {
      own[i] = static_cast<float>(initial_value_of(entry.name, static_cast<int64_t>(i)));
    }
    tensors.push_back({entry.name, DType::f32, entry.shape, {}});
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].data = std::as_bytes(std::span(values[i]));
  write_safetensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomically(folder / "config.json", read_file(fixture.folder / "config.json"));
}

TEST(HuggingFaceWeights, GivePyTorchsLossAndTheirOwnBits) {
  for (const char* name : {"gpt2", "llama", "llama-linear", "llama3-scaled", "mistral-window", "qwen2", "qwen2-yarn",
                           "qwen3", "deepseek-v2-yarn", "deepseek-v3-dense"}) {
    SCOPED_TRACE(name);
    const Fixture fixture = load_fixture(name);
    const TemporaryFolder folder;
    write_folder(fixture, folder.path());
    ModelRun own(fixture, {}), imported(fixture, {});
    const StepMetrics before = own.step(1, fixture.batches[0]);  // and its parameters are no longer the first ones
    imported.step(1, fixture.batches[0]);
    imported.take_weights(folder.path());
    const StepMetrics after = imported.step(1, fixture.batches[0]);
    EXPECT_NEAR(after.loss, fixture.loss, 1e-9 * fixture.loss);
    EXPECT_NEAR(after.grad_norm, fixture.gradient_norm, 1e-6 * fixture.gradient_norm);
    EXPECT_EQ(after.loss, before.loss) << "the values are exact in f32";
    EXPECT_EQ(imported.gradients(), own.gradients());
  }
}

}  // namespace
}  // namespace foresail::testing
