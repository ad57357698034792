#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "runtime/checkpoint/safetensors.h"
#include "tests/reference/fixture.h"

namespace foresail::testing {
namespace {

std::vector<int32_t> ids_of(const JsonObject& object, const std::string& key, int64_t count) {
  const std::vector<int64_t> ids = object.get_ints(key);
  ensure(static_cast<int64_t>(ids.size()) == count, "a fixture's batch holds every token");
  return {ids.begin(), ids.end()};
}

Trajectory trajectory_of(const JsonObject& object) {
  const auto number = [&](const std::string& key) { return object.require_number(key, 0, 1e6); };
  return {number("learning_rate"),
          number("beta1"),
          number("beta2"),
          number("epsilon"),
          number("weight_decay"),
          number("clip_norm"),
          object.get_numbers("losses"),
          object.get_numbers("gradient_norms")};
}

Tensors read_tensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  Tensors tensors;
  for (const TensorEntry& entry : file.tensors()) {
    ensure(entry.type == "F32", "fixtures hold float32");
    std::vector<float> values(static_cast<size_t>(entry.elements()));
    file.read(entry, 0, std::as_writable_bytes(std::span(values)));
    tensors[entry.name] = {values.begin(), values.end()};
  }
  return tensors;
}

uint64_t fnv1a64(const std::string& text) {
  uint64_t state = 0xCBF29CE484222325;
  for (const unsigned char byte : text) state = (state ^ byte) * 0x100000001B3;
  return state;
}

bool is_norm_weight(const std::string& name) {
  return name.ends_with("weight") && (name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos);
}

}  // namespace

int64_t FixtureBatch::counted() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t target) { return target >= 0; });
}

double initial_value_of(const std::string& tensor, int64_t index) {
  uint64_t state = fnv1a64(tensor) + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EB;
  state ^= state >> 31;
  const double draw = (2.0 * static_cast<double>(state >> 52) - 4095) / 16384;
  return is_norm_weight(tensor) ? 1 + draw : draw;
}

Fixture load_fixture(const std::string& name) {
  Fixture fixture;
  fixture.folder = std::filesystem::path(TEST_FOLDER) / "fixtures" / name;
  fixture.model = load_model(fixture.folder.string());
  const Json json = read_json_file(fixture.folder / "fixture.json");
  const JsonObject object(json, name);
  constexpr int64_t kMost = int64_t{1} << 40;
  fixture.sequence_length = object.require_int("sequence_length", 1, kMost);
  fixture.sequences = object.require_int("sequences", 1, kMost);
  fixture.parameters = object.require_int("parameters", 1, kMost);
  fixture.loss = object.require_number("loss", 0, 1e6);
  fixture.auxiliary_loss = object.require_number("auxiliary_loss", 0, 1e6);
  fixture.gradient_norm = object.require_number("gradient_norm", 0, 1e6);
  const int64_t rows = fixture.sequence_length * fixture.sequences;
  for (const JsonObject& batch : object.get_objects("batches")) {
    fixture.batches.push_back({ids_of(batch, "tokens", rows), ids_of(batch, "targets", rows)});
  }
  fixture.gradients = read_tensors(fixture.folder / "gradients.safetensors");
  if (object.has("trajectory")) {
    fixture.trajectory = trajectory_of(object.require_object("trajectory"));
    fixture.trained = read_tensors(fixture.folder / "trained.safetensors");
  }
  return fixture;
}

}  // namespace foresail::testing
