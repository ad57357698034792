#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "runtime/metrics/metrics_log.h"
#include "runtime/metrics/progress.h"
#include "runtime/metrics/tensorboard.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

StepLine line_of(int64_t step) {
  StepLine line;
  line.step = step;
  line.loss = 2.5 / static_cast<double>(step) + 0.1;
  line.grad_norm = 1e-17;
  line.learning_rate = 3e-4;
  line.tokens = step * 4096;
  line.step_seconds = 0.125;
  line.tokens_per_second = 32768;
  if (step % 2 == 0) line.mfu = 0.4, line.resident_bytes = int64_t{1} << 40, line.validation_loss = 1.75;
  line.skipped = step % 3 == 0;
  return line;
}

TEST(Metrics, LinesReadBackBitForBit) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  EXPECT_TRUE(read_metrics(path).empty());
  {
    MetricsLog log(path, 0);
    for (int64_t step = 1; step <= 3000; ++step) log.append(line_of(step));  // more than one read
  }
  const auto lines = read_metrics(path);
  ASSERT_EQ(lines.size(), 3000u);
  for (int64_t step = 1; step <= 3000; ++step) EXPECT_EQ(lines[static_cast<size_t>(step - 1)], line_of(step));
}

TEST(Metrics, EachLineIsInTheFileAsSoonAsItIsAppended) {
  const TemporaryFolder folder;
  MetricsLog log(folder.path() / "m", 0);
  log.append(line_of(1));
  EXPECT_EQ(read_metrics(folder.path() / "m").size(), 1u);
}

TEST(Metrics, ResumingCutsOffLaterStepsAndATornLine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  {
    MetricsLog log(path, 0);
    for (int64_t step = 1; step <= 10; ++step) log.append(line_of(step));
  }
  std::ofstream(path, std::ios::app) << "{\"step\": 11, \"lo";
  EXPECT_EQ(read_metrics(path).size(), 10u);
  MetricsLog(path, 10).append(line_of(11));
  EXPECT_EQ(read_metrics(path).size(), 11u);
  MetricsLog(path, 7).append(line_of(8));
  ASSERT_EQ(read_metrics(path).size(), 8u);
  EXPECT_EQ(read_metrics(path).back().step, 8);
  MetricsLog restart(path, 0);
  EXPECT_TRUE(read_metrics(path).empty());
}

TEST(Metrics, NumbersThatAreNotFiniteBecomeNull) {
  StepLine line;
  line.step = 4;
  line.loss = std::nan("");
  line.grad_norm = HUGE_VAL;
  const std::string text = step_line_to_json(line);
  EXPECT_NE(text.find("\"loss\":null"), std::string::npos) << text;
  EXPECT_TRUE(std::isnan(step_line_from_json(text, "m").loss));
}

TEST(Metrics, DamageInTheMiddleIsRefusedNamingTheLine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  std::ofstream(path) << step_line_to_json(line_of(1)) << "\nnot json\n" << step_line_to_json(line_of(2)) << "\n";
  try {
    read_metrics(path);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl: line 2"), std::string::npos) << error.what();
  }
}

TEST(Events, AppendOnlyOverAllLivesAndNeverGluedToATornLine) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "events.jsonl";
  EventLog(path).append({"checkpoint", 10, "saved \xff", {{"path", "p"}}, {{"seconds", 0.5}}});
  std::ofstream(path, std::ios::app) << "{\"kind\": \"tor";
  EventLog(path).append({"resume", 10, "", {}, {}});
  const std::string text = read_file(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_NE(text.find("\"kind\":\"checkpoint\",\"step\":10"), std::string::npos) << text;
  EXPECT_NE(text.find("\"seconds\":0.5"), std::string::npos);
  EXPECT_NE(text.find("\n{\"time\":"), std::string::npos);
}

TEST(Progress, SaysRateAndTimeLeftInWordsOfPeople) {
  EXPECT_EQ(duration_text(4.24), "4.2 s");
  EXPECT_EQ(duration_text(59.96), "1 min 00 s");
  EXPECT_EQ(duration_text(185), "3 min 05 s");
  EXPECT_EQ(duration_text(7620), "2 h 07 min");
  EXPECT_EQ(duration_text(273600), "3 d 4 h");
  EXPECT_EQ(duration_text(std::nan("")), "unknown");
  EXPECT_EQ(progress_text({120, 300, 2.31414, {}, 0.4131, 18'240, 185}),
            "step 120/300  loss 2.3141  18.2 k tokens/s  MFU 41.3 %  3 min 05 s left");
}

std::string shown(bool terminal, double seconds_per_step) {
  std::FILE* const out = std::tmpfile();
  {
    ProgressLine progress(out, terminal, 10);
    for (int64_t step = 1; step <= 30; ++step) {
      progress.update({step, 30, 1, {}, {}, step == 1 ? 40.0 : 1000.0, 0}, step == 1 ? 50 : 2,
                      static_cast<double>(step) * seconds_per_step);
    }
  }
  std::string text(static_cast<size_t>(std::ftell(out)), '\0');
  std::rewind(out);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
  std::fclose(out);
  return text;
}

TEST(Progress, ALogGetsPlainLinesNowAndThen) {
  const std::string text = shown(false, 2);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 7) << text;  // steps 1, 6, 11, 16, 21, 26 and the last
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("step 6/30  loss 1.0000  1 k tokens/s  48.0 s left"), std::string::npos)
      << text;  // the slow first is out
}

TEST(Progress, ANewValidationLossIsShownAtOnceAndOnce) {
  std::FILE* const out = std::tmpfile();
  {
    ProgressLine progress(out, false, 1000);
    std::optional<double> validation;
    for (int64_t step = 1; step <= 9; ++step) {
      if (step == 4) validation = 1.5;
      progress.update({step, 100, 1, validation, {}, 0, 0}, 1, static_cast<double>(step));
    }
  }
  std::string text(static_cast<size_t>(std::ftell(out)), '\0');
  std::rewind(out);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), out), text.size());
  std::fclose(out);
  EXPECT_EQ(text,
            "step 1/100  loss 1.0000  1 min 39 s left\nstep 4/100  loss 1.0000  validation 1.5000  1 min 36 s left\n");
}

TEST(Progress, ATerminalLineIsRewrittenAndEndedOnce) {
  const std::string text = shown(true, 2);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 30);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.back(), '\n');
}

TEST(TensorBoard, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);            // the check value of the CRC catalogue
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, appendix B.4
}

TEST(TensorBoard, RecordsHaveTheDocumentedFrameAndFields) {
  const TemporaryFolder folder;
  TensorBoardWriter writer(folder.path() / "tb");
  const std::pair<std::string, double> scalars[] = {{"loss", 1.5}, {"mfu", 0.25}};
  writer.append(300, scalars);
  EXPECT_NE(writer.path().filename().string().find("tfevents"), std::string::npos);
  const std::string content = read_file(writer.path());
  std::vector<std::string> payloads;
  for (size_t at = 0; at < content.size();) {
    uint64_t length = 0;
    uint32_t stated = 0;
    std::memcpy(&length, content.data() + at, 8);
    const auto mask = [](uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8; };
    std::memcpy(&stated, content.data() + at + 8, 4);
    EXPECT_EQ(stated, mask(crc32c(content.substr(at, 8))));
    payloads.push_back(content.substr(at + 12, length));
    std::memcpy(&stated, content.data() + at + 12 + length, 4);
    EXPECT_EQ(stated, mask(crc32c(payloads.back())));
    at += 16 + length;
  }
  ASSERT_EQ(payloads.size(), 2u);
  EXPECT_EQ(payloads[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  // wall time, step 300 (varint ac 02), summary of two values: tag and float each.
  const std::string expected = std::string("\x10\xac\x02\x2a\x19", 5) +
                               std::string("\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\x3f", 13) +
                               std::string("\x0a\x0a\x0a\x03mfu\x15\x00\x00\x80\x3e", 12);
  EXPECT_EQ(payloads[1].substr(9), expected);
}

}  // namespace
}  // namespace foresail
