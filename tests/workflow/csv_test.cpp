#include "workflow/csv.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace foresail {
namespace {

std::string error_of(const std::string& text, const std::vector<std::string>& required = {}) {
  try {
    parse_csv(text, "runs.csv", required);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(Csv, QuotedFieldsMayHoldCommasQuotesAndLineBreaks) {
  const auto rows = parse_csv("a,b\r\n\"x, \"\"y\"\"\nz\",2\n\n3, 4 \n", "runs.csv", {"a", "b"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].text("a"), "x, \"y\"\nz");
  EXPECT_EQ(rows[0].number("b", 0, 10), 2);
  EXPECT_EQ(rows[1].text("b"), "4");
  EXPECT_EQ(rows[1].text("no such column"), "");
}

TEST(Csv, ShortRowsLeaveFieldsBlank) {
  const auto rows = parse_csv("a,b,c\n1\n", "runs.csv", {});
  EXPECT_FALSE(rows[0].number("c", 0, 1));
}

TEST(Csv, DamageIsNamedWithItsLine) {
  EXPECT_NE(error_of("a,b\n1,\"2\n").find("line 2"), std::string::npos);
  EXPECT_NE(error_of("a,b\n1,2\n1,2,3\n").find("line 3"), std::string::npos);
  EXPECT_NE(error_of("").find("empty"), std::string::npos);
  EXPECT_NE(error_of("a,a\n").find("twice"), std::string::npos);
  EXPECT_NE(error_of("a\n1\n", {"id"}).find("'id'"), std::string::npos);
}

TEST(Csv, NumbersAreRangeChecked) {
  const auto rows = parse_csv("n\nseven\n-1\n1e400\n2.5\nnan\n", "runs.csv", {});
  for (const size_t row : {0u, 1u, 2u, 4u}) EXPECT_THROW(rows[row].number("n", 0, 100), Error) << row;
  EXPECT_EQ(rows[3].number("n", 0, 100), 2.5);
  EXPECT_THROW(rows[3].integer("n", 0, 100), Error);
}

}  // namespace
}  // namespace foresail
