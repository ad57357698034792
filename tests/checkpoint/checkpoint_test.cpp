#include "runtime/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/inspect.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/temporary_folder.h"
#include "tests/checkpoint/thread_communicator.h"

namespace foresail {
namespace {

const std::vector<std::string> no_errors(int ranks) { return std::vector<std::string>(static_cast<size_t>(ranks)); }

struct Layout {
  int pp, dp, tp;
  int ranks() const { return pp * dp * tp; }
};
constexpr Layout kLayouts[] = {{1, 1, 1}, {1, 1, 2}, {2, 2, 1}, {2, 1, 2}, {1, 1, 3}, {3, 1, 1}, {1, 3, 1}, {1, 1, 4}};

std::string error_of(const std::function<void()>& action, Exit exit = Exit::bad_input) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), exit) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

// In place: some file systems flush at once when a file is truncated and written anew.
void write_byte(const std::filesystem::path& path, size_t at, char value) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(value);
}

void load_single(const std::filesystem::path& path, DType dtype = DType::f32, bool convert = false) {
  RankMemory memory = rank_memory(1, 1, 1, 0, dtype);
  const auto segments = memory.segments(kAdamW);
  load_slices(Checkpoint(path), segments, {convert});
  EXPECT_EQ(memory.wrong(kAdamW), "");
}

TEST(Checkpoint, AnyLayoutLoadsAnyOther) {
  for (const Layout& writer : kLayouts) {
    const TemporaryFolder folder;
    ASSERT_EQ(save_from(folder.path(), 7, writer.pp, writer.dp, writer.tp), no_errors(writer.ranks()));
    for (const Layout& reader : kLayouts) {
      const auto errors = run_ranks(reader.ranks(), [&](Communicator& communicator) {
        RankMemory memory = rank_memory(reader.pp, reader.dp, reader.tp, communicator.rank());
        const auto segments = memory.segments(kAdamW);
        restore_checkpoint(folder.path() / "step-7", segments, {}, {&communicator, 0});
        EXPECT_EQ(memory.wrong(kAdamW), "");
      });
      EXPECT_EQ(errors, no_errors(reader.ranks()));
    }
  }
}

TEST(Checkpoint, DigestsDoNotDependOnThePlanAndEveryRectangleIsStoredOnce) {
  std::map<std::string, std::string> reference;
  for (const Layout& layout : kLayouts) {
    const TemporaryFolder folder;
    ASSERT_EQ(save_from(folder.path(), 1, layout.pp, layout.dp, layout.tp), no_errors(layout.ranks()));
    const Checkpoint checkpoint(folder.path() / "step-1");
    std::map<std::string, std::string> digests = {{"", checkpoint.manifest().parameters_digest}};
    int64_t stored = 0;
    for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
      digests[tensor.full_name()] = tensor.digest;
      for (const Slab& slab : tensor.slabs) stored += slab.part.elements();
    }
    EXPECT_EQ(stored, 3 * (23 * 8 + 12 * 8 + 8 * 10 + 8));
    if (reference.empty()) reference = digests;
    EXPECT_EQ(digests, reference);
  }
}

TEST(Checkpoint, DigestSeesAChangedSwappedOrMovedElement) {
  std::vector<float> values(64);
  for (size_t i = 0; i < 64; ++i) values[i] = static_cast<float>(i % 7);
  const auto sum = [&] {
    return sum_elements(std::as_bytes(std::span(values)).data(), DType::f32, {0, 8, 0, 8}, 8, 8);
  };
  const ElementSum before = sum();
  std::swap(values[3], values[12]);
  EXPECT_NE(sum(), before);
  std::swap(values[3], values[12]);
  EXPECT_EQ(sum(), before);
  values[5] = std::nextafter(values[5], 10.0F);
  EXPECT_NE(sum(), before);
  const ElementSum left = sum_elements(std::as_bytes(std::span(values)).data(), DType::f32, {0, 4, 0, 8}, 8, 8);
  const ElementSum moved = sum_elements(std::as_bytes(std::span(values)).data(), DType::f32, {4, 8, 0, 8}, 8, 8);
  EXPECT_NE(left, moved);
}

TEST(Checkpoint, TheStateOfTheRunSurvivesExactly) {
  const TemporaryFolder folder;
  save_from(folder.path(), 12, 1, 1, 2);
  EXPECT_EQ(Checkpoint(folder.path() / "step-12").state(), state_at(12));
}

TEST(Checkpoint, ARestoredRunMayChangeTheBitsOfNothing) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 2, 2, 1);
  const auto errors = run_ranks(3, [&](Communicator& communicator) {
    RankMemory memory = rank_memory(1, 1, 3, communicator.rank());
    const auto segments = memory.segments(kAdamW);
    const CheckpointRanks ranks{&communicator, 0};
    const std::string digest = restore_checkpoint(folder.path() / "step-1", segments, {}, ranks);
    EXPECT_EQ(digest, Checkpoint(folder.path() / "step-1").manifest().parameters_digest);
    if (communicator.rank() == 2) memory.set(Quantity::parameter, memory.slices[4].element_offset, 1e-30);
    EXPECT_NE(combine_digests(tensor_digests(segments[0], ranks)), digest);
  });
  EXPECT_EQ(errors, no_errors(3));
}

TEST(Checkpoint, EveryFlippedByteIsFoundAndTheFileNamed) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 2);
  const auto path = folder.path() / "step-1";
  for (const char* name : {"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"}) {
    const std::string sound = read_file(path / name);
    for (size_t i = 0; i < sound.size(); i += name[0] == 'm' ? 29 : 5) {
      write_byte(path / name, i, static_cast<char>(sound[i] ^ (i % 2 == 0 ? 0x01 : 0x40)));
      const CheckpointVerdict verdict = verify_checkpoint(path);
      ASSERT_FALSE(verdict.passed()) << name << " byte " << i;
      EXPECT_NE(verdict.problems.front().find(name), std::string::npos) << verdict.problems.front();
      if (i % 97 == 0) {
        EXPECT_NE(error_of([&] { load_single(path); }).find(name), std::string::npos);
      }
      write_byte(path / name, i, sound[i]);
    }
  }
  EXPECT_TRUE(verify_checkpoint(path).passed());
}

TEST(Checkpoint, DamageNamesTheTensorAndDoesNotHideOtherDamage) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1);
  const auto path = folder.path() / "step-1";
  const Manifest manifest = Checkpoint(path).manifest();
  std::string content = read_file(path / "rank-00000.safetensors");
  for (const auto& [tensor, quantity] :
       {std::pair{"norm.weight", Quantity::moment2}, {"embedding.weight", Quantity::parameter}}) {
    content[static_cast<size_t>(manifest.find(tensor, quantity)->slabs[0].offset)] ^= 1;
  }
  std::ofstream(path / "rank-00000.safetensors", std::ios::binary) << content;
  const CheckpointVerdict verdict = verify_checkpoint(path);
  ASSERT_EQ(verdict.problems.size(), 2u);
  EXPECT_NE(verdict.problems[0].find("embedding.weight"), std::string::npos);
  EXPECT_NE(verdict.problems[1].find("norm.weight#v"), std::string::npos);
}

TEST(Checkpoint, TruncatedMissingOrForeignFilesAreRefused) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 2);
  const auto path = folder.path() / "step-1";
  const std::string manifest = read_file(path / "manifest.json"), data = read_file(path / "rank-00001.safetensors");
  const auto check = [&](const char* said) {
    EXPECT_NE(error_of([&] { load_single(path); }).find(said), std::string::npos)
        << error_of([&] { load_single(path); });
    EXPECT_FALSE(verify_checkpoint(path).passed());
    EXPECT_FALSE(latest_complete(folder.path()).has_value());
  };
  std::ofstream(path / "manifest.json") << manifest.substr(0, manifest.size() / 2);
  check("manifest.json");
  std::ofstream(path / "manifest.json") << "{\"schema\": \"foresail.plan/1\"}";
  check("foresail.plan/1");
  std::string doubled = manifest;
  doubled.insert(doubled.find("\"piece_bytes\""), "\"piece_bytes\": 64, ");
  std::ofstream(path / "manifest.json") << doubled;
  check("piece_bytes");
  std::ofstream(path / "manifest.json") << manifest;
  std::ofstream(path / "rank-00001.safetensors") << data.substr(0, data.size() - 1);
  check("rank-00001.safetensors");
  std::filesystem::remove(path / "rank-00001.safetensors");
  check("rank-00001.safetensors");
  std::filesystem::remove(path / "manifest.json");
  check("no manifest.json");
  EXPECT_NE(error_of([&] { verify_checkpoint(folder.path() / "absent"); }), "");
}

TEST(Checkpoint, WrongModelsShapesAndTypesAreRefusedByName) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1);
  const Checkpoint checkpoint(folder.path() / "step-1");
  const auto load = [&](RankMemory memory, std::vector<Quantity> quantities) {
    return error_of([&] {
      const auto segments = memory.segments(quantities);
      load_slices(checkpoint, segments, {});
    });
  };
  RankMemory missing, reshaped, wide = rank_memory(1, 1, 1, 0, DType::f64);
  missing.add("other.weight", {2, 2}, {0, 2, 0, 2});
  EXPECT_NE(load(missing, kAdamW).find("no parameter of tensor 'other.weight'"), std::string::npos);
  reshaped.add("norm.weight", {9}, {0, 9, 0, 1});
  EXPECT_NE(load(reshaped, kAdamW).find("another shape"), std::string::npos);
  EXPECT_NE(load(wide, kAdamW).find("is f32, the plan uses f64"), std::string::npos);
  EXPECT_NE(load(rank_memory(1, 1, 1, 0), {Quantity::master}).find("no master of tensor"), std::string::npos);
}

TEST(Checkpoint, ConversionIsExplicitAndRoundsToNearest) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 2, DType::f64);
  EXPECT_NE(error_of([&] { load_single(folder.path() / "step-1", DType::f32, false); }), "");
  load_single(folder.path() / "step-1", DType::f32, true);
  const double third = 1.0 / 3;
  float narrow = 0;
  convert_elements(std::as_bytes(std::span(&third, 1)), DType::f64, reinterpret_cast<std::byte*>(&narrow), DType::f32,
                   "x");
  EXPECT_EQ(narrow, static_cast<float>(third));
}

TEST(Checkpoint, AMasterCopyMayBeTakenFromFullPrecisionParametersOnRequest) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1);
  RankMemory memory = rank_memory(1, 1, 1, 0);
  const auto segments = memory.segments({Quantity::master});
  load_slices(Checkpoint(folder.path() / "step-1"), segments, {true});
  const float expected = static_cast<float>(expected_value("norm.weight", Quantity::parameter, 5, 0));
  EXPECT_EQ(memory.at(Quantity::master, memory.slices[5].element_offset + 5), expected);
}

TEST(Checkpoint, RanksThatDisagreeAboutATensorFailTogether) {
  const TemporaryFolder folder;
  const auto errors = run_ranks(2, [&](Communicator& communicator) {
    RankMemory memory;
    memory.add("w", {8, 8}, communicator.rank() == 0 ? Rectangle{0, 5, 0, 8} : Rectangle{4, 8, 0, 8});
    memory.fill(kAdamW);
    const auto segments = memory.segments(kAdamW);
    save_checkpoint({folder.path(), state_at(1), segments, 3, 64}, {&communicator, 0});
  });
  EXPECT_NE(errors[0].find("covered twice"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Checkpoint, AHoleInATensorIsRefusedWhenSaving) {
  const TemporaryFolder folder;
  RankMemory memory;
  memory.add("w", {8, 8}, {0, 7, 0, 8});
  memory.fill(kAdamW);
  const auto segments = memory.segments(kAdamW);
  const std::string message = error_of([&] { save_checkpoint({folder.path(), state_at(1), segments}, {}); });
  EXPECT_NE(message.find("56 of 64 elements"), std::string::npos) << message;
}

TEST(Checkpoint, AFullDiskFailsEveryRankAndLeavesTheOldCheckpoint) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 2);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{2000, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto errors = save_from(folder.path(), 2, 1, 1, 2);
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(errors[0].find("rank 0: "), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("free space"), std::string::npos) << errors[0];
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(latest_complete(folder.path())->step, 1);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-2.tmp"));
  load_single(folder.path() / "step-1");
}

TEST(Checkpoint, SavingTheSameStepAgainReplacesIt) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 2);
  EXPECT_EQ(save_from(folder.path(), 1, 1, 1, 1), no_errors(1));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "step-1" / "rank-00001.safetensors"));
  load_single(folder.path() / "step-1");
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 1u);
}

TEST(Checkpoint, AProcessKilledAtAnyMomentLeavesAUsableCheckpoint) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1);
  for (int kill = 0; kill < 25; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RankMemory memory = rank_memory(1, 1, 1, 0);
      memory.fill(kAdamW);
      const auto segments = memory.segments(kAdamW);
      for (int64_t step = 2;; ++step) save_checkpoint({folder.path(), state_at(step % 5 + 2), segments, 1, 64}, {});
    }
    ::usleep(static_cast<useconds_t>(2000 + kill * 1731));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto latest = latest_complete(folder.path());
    ASSERT_TRUE(latest.has_value()) << kill;
    ASSERT_TRUE(verify_checkpoint(latest->path).passed()) << kill;
    load_single(latest->path);
  }
}

}  // namespace
}  // namespace foresail
