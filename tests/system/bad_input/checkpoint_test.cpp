// Checkpoints that are damaged, missing, or of another run: refused with the run's folder as it was; and the change of plan
// that is legal.
#include <functional>

#include "tests/system/small_training.h"

namespace foresail {
namespace {

class BadCheckpoint : public SmallTraining {
 protected:
  const std::string step_ = "run/checkpoints/step-20";

  void SetUp() override {
    SmallTraining::SetUp();
    if (!std::filesystem::exists(prepared() / "run")) {
      expect_done(train("dp2.json", "run", {"--steps", "20"}));
      for (const char* older : {"step-5", "step-10", "step-15"}) {
        std::filesystem::remove_all(folder_ / "run/checkpoints" / older);
      }
      std::filesystem::copy(folder_ / "run", prepared() / "run", std::filesystem::copy_options::recursive);
    }
  }

  void renew_run() {
    std::filesystem::remove_all(folder_ / "run");
    std::filesystem::copy(prepared() / "run", folder_ / "run", std::filesystem::copy_options::recursive);
  }

  void expect_resume_refused(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
    const auto before = tree("run");
    expect_refused_while_running(words, 2, parts);
    EXPECT_TRUE(tree("run") == before) << "the refused run has changed its folder: " << testing::PrintToString(words);
  }

  double validation_loss(const std::vector<std::string>& words) {
    return document_of(words)["validation_loss"].get<double>();
  }
};

TEST_F(BadCheckpoint, ADamagedCheckpointIsNamedAndTheRunDoesNotStartAnew) {
  const auto at = [&](const char* name) { return folder_ / step_ / name; };
  const auto flip = [&](const char* name, int64_t offset) {
    std::fstream file(at(name), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(offset);
    file.put(byte);
  };
  const std::vector<std::function<void()>> damages = {
      [&] { std::filesystem::resize_file(at("manifest.json"), 0); },
      [&] { std::filesystem::resize_file(at("manifest.json"), 1000); },
      [&] { std::filesystem::remove(at("manifest.json")); },
      [&] { flip("manifest.json", 400); },
      [&] { std::filesystem::remove(at("rank-00000.safetensors")); },
      [&] { std::filesystem::resize_file(at("rank-00000.safetensors"), 0); },
      [&] { std::filesystem::resize_file(at("rank-00000.safetensors"), 50000); },
      [&] { flip("rank-00000.safetensors", 30); },
      [&] { flip("rank-00000.safetensors", 90000); },
      [&] { std::filesystem::rename(folder_ / step_, folder_ / "run/checkpoints/step-30"); },
      [&] { std::filesystem::rename(folder_ / step_, folder_ / (step_ + ".damaged")); }};
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE("damage " + std::to_string(i));
    renew_run();
    damages[i]();
    expect_resume_refused(train("dp2.json", "run", {"--resume"}), {"run/checkpoints"});
    if (i >= 9) continue;  // those two are whole, only misnamed
    EXPECT_EQ(run({"checkpoint", "verify", step_}).exit_code, 1);
  }
}

TEST_F(BadCheckpoint, TheNewestCompleteCheckpointServesWhenALaterOneIsDamaged) {
  expect_done(train("dp2.json", "run", {"--resume", "--steps", "25"}));
  std::filesystem::resize_file(folder_ / "run/checkpoints/step-25/rank-00000.safetensors", 100);
  const Said said = run(train("dp2.json", "run", {"--resume", "--steps", "30"}));
  EXPECT_EQ(said.exit_code, 0) << said.log;
  EXPECT_NE(said.log.find("step-25"), std::string::npos) << "what was passed over is said: " << said.log;
  EXPECT_NE(said.log.find("resume at step 20"), std::string::npos) << said.log;
}

TEST_F(BadCheckpoint, AnotherModelDataOrSeedIsNotTheSameRun) {
  Json other = tiny_model();
  other["num_hidden_layers"] = 4;
  write("other.json", other.dump());
  plan("other-plan.json", 2, "dp=2", "other.json");
  expect_resume_refused(train("other-plan.json", "run", {"--resume"}), {step_, "model", "num_hidden_layers"});
  Json seeded = Json::parse(content_of(folder_ / "dp2.json"));
  seeded["job"]["seed"] = 99;
  write("seeded.json", seeded.dump());
  expect_resume_refused(train("seeded.json", "run", {"--resume"}), {step_, "seed", "99"});
  write("more.txt", content_of(folder_ / "text.txt") + "And more.\n");
  expect_done({"data", "prepare", "more.txt", "--tokenizer", "bytes", "--split", "blank-lines", "--out", "more"});
  expect_resume_refused({"train", "dp2.json", "--data", "more", "--out", "run", "--resume"}, {step_, "dataset"});
}

TEST_F(BadCheckpoint, StepsThatAreNotThereAreRefused) {
  expect_resume_refused(train("dp2.json", "run", {"--resume=step-7"}), {"step 7", "step-20"});
  expect_resume_refused(train("dp2.json", "run", {"--resume=soon"}), {"--resume", "soon"});
  expect_resume_refused(train("dp2.json", "run", {"--resume", "--steps", "51"}), {"--steps", "50"});
  expect_resume_refused(train("dp2.json", "run"), {"run", "--resume"});
}

TEST_F(BadCheckpoint, AnInitThatDoesNotFitLeavesNoRun) {
  Json other = tiny_model();
  other["hidden_size"] = 64;
  write("other.json", other.dump());
  plan("other-plan.json", 2, "dp=2", "other.json");
  expect_refused_while_running(train("other-plan.json", "new", {"--init", step_}), 2, {step_, "shape"});
  for (const char* init : {"missing", "tiny.json"}) {
    expect_refused_while_running(train("dp2.json", "new", {"--init", init}), 2, {init});
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST_F(BadCheckpoint, OneRunFolderHasOneWriter) {
  Json endless = Json::parse(content_of(folder_ / "dp2.json"));
  endless["steps"] = 100000000;
  write("endless.json", endless.dump());
  const pid_t first = start(train("endless.json", "busy"));
  for (int wait = 0; wait < 400 && lines_of(content_of(folder_ / "busy/metrics.jsonl")) < 2; ++wait) pause(50);
  std::filesystem::rename(folder_ / "stdout.txt", folder_ / "first.txt");  // run() opens new ones
  std::filesystem::rename(folder_ / "stderr.txt", folder_ / "first-log.txt");
  const Said second = run(train("endless.json", "busy", {"--resume"}));
  EXPECT_EQ(second.exit_code, 2) << second.log;
  EXPECT_NE(second.log.find("another process"), std::string::npos) << second.log;
  kill(first, SIGINT);
  EXPECT_EQ(finish(first).exit_code, 75);
  expect_no_process_left();
}

TEST_F(BadCheckpoint, AnyLegalPlanResumesAnyOtherPlansCheckpoint) {
  renew_run();
  const double loss = validation_loss(train("dp2.json", "run", {"--resume"}));
  for (const char* plan : {"tp2.json", "pp2.json", "one.json"}) {
    renew_run();
    EXPECT_NEAR(validation_loss(train(plan, "run", {"--resume"})), loss, 1e-4 * loss) << plan;
  }
}

}  // namespace
}  // namespace foresail
