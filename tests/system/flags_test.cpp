// The parts of cli/ that are more than declarations: numbers with units, and tables.
#include <gtest/gtest.h>

#include "cli/flags.h"
#include "cli/table.h"
#include "core/error.h"

namespace foresail {
namespace {

TEST(Flags, CountsAreWholeNumbersInAnyNotation) {
  EXPECT_EQ(count_from_text("8", "--n"), 8);
  EXPECT_EQ(count_from_text("300e9", "--n"), 300'000'000'000);
  EXPECT_EQ(count_from_text("9007199254740992", "--n"), int64_t{1} << 53);
  for (const char* wrong : {"", "0", "-1", "1.5", "x", "8 ", "8x", "inf", "nan", "1e17"}) {
    EXPECT_THROW(count_from_text(wrong, "--n"), Error) << wrong;
  }
}

TEST(Flags, SizesHaveBinaryAndDecimalUnits) {
  EXPECT_EQ(bytes_from_text("1500000", "--n"), 1'500'000);
  EXPECT_EQ(bytes_from_text("16GiB", "--n"), int64_t{16} << 30);
  EXPECT_EQ(bytes_from_text("40GB", "--n"), 40'000'000'000);
  EXPECT_EQ(bytes_from_text("0.5KiB", "--n"), 512);
  for (const char* wrong : {"", "GiB", "16 GiB", "16gib", "-1GB", "1e300TiB", "0"}) {
    EXPECT_THROW(bytes_from_text(wrong, "--n"), Error) << wrong;
  }
}

TEST(Table, NumbersStandRightAndTextLeft) {
  Table table({"name", "bytes", "note"});
  table.add({"a", "1,024", "first"});
  table.add({"longer", "7"});
  EXPECT_EQ(table.text(),
            "name    bytes  note\n"
            "a       1,024  first\n"
            "longer      7\n");
}

TEST(Table, WithoutHeaderItIsAListOfPairs) {
  Table table({"", ""});
  table.add({"tokens", "many"});
  table.add({"x", "é"});
  EXPECT_EQ(table.text(), "tokens  many\nx       é\n");
  EXPECT_THROW(table.add({"1", "2", "3"}), Error);
}

TEST(Table, NumbersAreGrouped) {
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(-1234567), "-1,234,567");
  EXPECT_EQ(grouped(-123), "-123");
}

}  // namespace
}  // namespace foresail
