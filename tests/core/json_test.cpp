#include "core/json.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <random>

#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

/// The message of the bad_input error that `action` throws; empty if it throws none.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "a message is one line";
    return error.what();
  }
  return "";
}

std::string parse_refusal(const std::string& text) {
  return refusal([&] { parse_json(text, "job.json"); });
}

TEST(ParseJson, ReadsEveryKindOfValueAndKeepsTheOrderOfKeys) {
  const Json value =
      parse_json(R"({"z": 1, "a": [true, null, "x\u00e9", -2, 2.5, 18446744073709551615], "m": {}})", "t");
  EXPECT_EQ(value.dump(), "{\"z\":1,\"a\":[true,null,\"x\u00e9\",-2,2.5,18446744073709551615],\"m\":{}}");
}

TEST(ParseJson, RefusesAKeyThatAppearsTwiceInOneObject) {
  EXPECT_NE(parse_refusal(R"({"a": 1, "b": 2, "a": 1})").find("'a' appears twice"), std::string::npos);
  EXPECT_NE(parse_refusal(R"({"a": {"b": 1, "b": 1}})").find("'b' appears twice"), std::string::npos);
  EXPECT_EQ(parse_refusal(R"({"a": {"b": 1}, "c": {"b": 1}})"), "");
}

TEST(ParseJson, RefusesTrailingBytesTruncationAndEmptyText) {
  for (const std::string text : {"{} x", "{}{}", "{\"a\": 1", "[1, 2", "", " ", "{\"a\" 1}", "{'a': 1}", "{\"a\": 1,}",
                                 "// note\n{}", "nul", "\"\xff\""}) {
    EXPECT_NE(parse_refusal(text).find("job.json"), std::string::npos) << text;
  }
}

TEST(ParseJson, RefusesNumbersThatAreNotFinite) {
  for (const std::string text : {"[NaN]", "[Infinity]", "[-Infinity]", "[1e999]", "[-1e999]"}) {
    EXPECT_NE(parse_refusal(text), "") << text;
  }
}

TEST(ParseJson, AcceptsSixtyFourLevelsAndRefusesMore) {
  EXPECT_EQ(parse_refusal(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_NE(parse_refusal(std::string(65, '[') + std::string(65, ']')).find("deeper than 64"), std::string::npos);
  EXPECT_NE(parse_refusal(std::string(1'000'000, '[')).find("deeper than 64"), std::string::npos);
}

TEST(ParseJson, ReadsAnObjectOfManyKeysInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 200'000; ++i) text += (i ? ",\"key" : "\"key") + std::to_string(i) + "\":1";
  EXPECT_EQ(parse_json(text + "}", "t").size(), 200'000u);  // quadratic insertion would take minutes
}

TEST(JsonText, WritesDoublesThatReadBackBitForBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    const double number = std::bit_cast<double>(random());
    if (!std::isfinite(number)) continue;
    const double again = parse_json(json_text(Json::array({number})), "t")[0].get<double>();
    ASSERT_EQ(std::bit_cast<uint64_t>(again), std::bit_cast<uint64_t>(number));
  }
  EXPECT_TRUE(std::signbit(parse_json(json_text(Json::array({-0.0})), "t")[0].get<double>()));
}

TEST(JsonText, RefusesTextThatIsNotUtf8AndNumbersThatAreNotFinite) {
  EXPECT_NE(refusal([] { json_text(Json::array({"\xff"})); }), "");
  EXPECT_THROW(json_text(Json::array({std::nan("")})), Error);
}

class JsonObjectTest : public testing::Test {
 protected:
  const Json value = parse_json(R"({
    "whole": 3, "round": 1e6, "broken": 2.5, "huge": 18446744073709551615, "text": "t", "flag": true, "none": null,
    "inner": {"deep": {"x": -1}}, "list": [{"a": 1}, {"a": "no"}], "numbers": [1, 2.5], "ints": [1, "two"]})",
                                "job.json");
  const JsonObject object{value, "job.json"};
};

TEST_F(JsonObjectTest, ReturnsValuesAndFallbacks) {
  EXPECT_EQ(object.require_int("whole", 0, 10), 3);
  EXPECT_EQ(object.get_int("round", 0, 0, 10'000'000), 1'000'000);
  EXPECT_EQ(object.get_int("missing", 7, 0, 10), 7);
  EXPECT_EQ(object.get_int("none", 7, 0, 10), 7) << "null reads as absent";
  EXPECT_EQ(object.require_number("broken", 0, 10), 2.5);
  EXPECT_EQ(object.get_string("text", ""), "t");
  EXPECT_TRUE(object.get_bool("flag", false));
  EXPECT_FALSE(object.has("none"));
  EXPECT_EQ(object.require_object("inner").require_object("deep").require_int("x", -5, 5), -1);
  EXPECT_EQ(object.get_numbers("numbers"), (std::vector<double>{1, 2.5}));
  EXPECT_TRUE(object.get_objects("missing").empty());
}

TEST_F(JsonObjectTest, NamesFileAndFieldOfWhatItRefuses) {
  EXPECT_NE(refusal([&] { object.require_int("absent", 0, 1); }).find("job.json: field 'absent'"), std::string::npos);
  EXPECT_NE(refusal([&] {
              object.require_object("inner").require_object("deep").require_int("x", 0, 5);
            }).find("field 'inner.deep.x'"),
            std::string::npos);
  EXPECT_NE(refusal([&] { object.get_objects("list")[1].require_int("a", 0, 5); }).find("field 'list[1].a'"),
            std::string::npos);
  EXPECT_NE(refusal([&] { object.get_ints("ints"); }).find("field 'ints[1]'"), std::string::npos);
}

TEST_F(JsonObjectTest, RefusesWrongTypesAndRanges) {
  EXPECT_NE(refusal([&] { object.require_int("broken", 0, 10); }), "");
  EXPECT_NE(refusal([&] { object.require_int("huge", 0, std::numeric_limits<int64_t>::max()); }), "");
  EXPECT_NE(refusal([&] { object.require_int("text", 0, 10); }), "");
  EXPECT_NE(refusal([&] { object.get_int("whole", 0, 4, 10); }), "");
  EXPECT_NE(refusal([&] { object.get_number("flag", 0, 0, 10); }), "");
  EXPECT_NE(refusal([&] { object.get_bool("whole", false); }), "");
  EXPECT_NE(refusal([&] { object.require_string("whole"); }), "");
  EXPECT_NE(refusal([&] { object.get_objects("inner"); }), "");
  EXPECT_NE(refusal([&] { object.require_object("list"); }), "");
  EXPECT_NE(refusal([&] { object.get_objects("numbers"); }), "");
}

TEST_F(JsonObjectTest, RefusesUnknownKeysAndOtherSchemas) {
  const Json file = parse_json(R"({"schema": "foresail.plan/1", "sede": 1})", "p.json");
  const JsonObject plan(file, "p.json");
  EXPECT_NE(refusal([&] { plan.refuse_unknown_keys({"schema", "seed"}); }).find("'sede'"), std::string::npos);
  EXPECT_EQ(refusal([&] { plan.refuse_unknown_keys({"schema", "sede"}); }), "");
  EXPECT_EQ(refusal([&] { plan.require_schema("foresail.plan/1"); }), "");
  EXPECT_NE(refusal([&] { plan.require_schema("foresail.job/1"); }).find("'foresail.plan/1'"), std::string::npos);
  EXPECT_NE(refusal([&] { object.require_schema("foresail.job/1"); }).find("no field 'schema'"), std::string::npos);
}

}  // namespace
}  // namespace foresail
