// Token ids against Hugging Face's own library (and OpenAI's for GPT-2) on a megabyte of mixed text.
#include <gtest/gtest.h>

#include "runtime/tokenizer/encoder.h"
#include "tests/tokenizer/fixture.h"

namespace foresail {
namespace {

class Peer : public ::testing::TestWithParam<std::string> {};

TEST_P(Peer, FindsTheSameIdsInAMegabyteOfMixedText) {
  const Tokenizer& tokenizer = testing::tokenizer(GetParam());
  const std::vector<std::string>& documents = testing::mixed_text();
  const std::vector<testing::PeerIds> expected = testing::peer_ids(GetParam());
  ASSERT_EQ(documents.size(), expected.size());
  TokenEncoder encoder(tokenizer);
  size_t bytes = 0, ids_in_all = 0, different = 0;
  for (size_t d = 0; d < documents.size(); ++d) {
    std::vector<int32_t> ids;
    encoder.encode(documents[d], ids);
    bytes += documents[d].size();
    ids_in_all += ids.size();
    if (testing::summary_of(ids) == expected[d]) continue;
    ++different;
    EXPECT_LT(different, 4u) << "document " << d << ": " << ids.size() << " ids for " << expected[d].count;
    if (different >= 4) break;
  }
  EXPECT_EQ(different, 0u);
  EXPECT_GT(bytes, 1'000'000u);
  EXPECT_GT(ids_in_all, 400'000u);
}

INSTANTIATE_TEST_SUITE_P(Families, Peer, ::testing::ValuesIn(testing::tokenizer_names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace foresail
