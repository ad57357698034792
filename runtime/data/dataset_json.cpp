#include "core/error.h"
#include "core/json.h"
#include "runtime/data/dataset.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.dataset/1";
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

Json bins_to_json(const std::vector<LengthBin>& bins) {
  Json list = Json::array();
  for (const LengthBin& bin : bins) {
    list.push_back({{"least", bin.least}, {"most", bin.most}, {"documents", bin.documents}, {"tokens", bin.tokens}});
  }
  return list;
}

Json info_to_json(const DatasetInfo& info) {
  Json value;
  value["schema"] = kSchema;
  value["tokenizer"] = info.tokenizer;
  if (!info.tokenizer_digest.empty()) {
    value["tokenizer_name"] = info.tokenizer_name;
    value["tokenizer_digest"] = info.tokenizer_digest;
  }
  value["vocabulary"] = info.vocabulary;
  value["end_of_document"] = info.end_of_document < 0 ? Json(nullptr) : Json(info.end_of_document);
  value["maximum_id"] = info.maximum_id;
  value["token_type"] = info.token_type;
  value["tokens"] = info.tokens;
  value["documents"] = info.documents;
  value["bin_bytes"] = info.bin_bytes;
  value["idx_bytes"] = info.idx_bytes;
  value["bin_digest"] = info.bin_digest;
  value["idx_digest"] = info.idx_digest;
  value["document_lengths"] = bins_to_json(info.document_lengths);
  if (info.mask) {
    value["mask"] = {
        {"counted_tokens", info.mask->counted_tokens}, {"bytes", info.mask->bytes}, {"digest", info.mask->digest}};
  }
  return value;
}

}  // namespace

std::string dataset_info_to_json(const DatasetInfo& info) { return json_text(info_to_json(info)); }

DatasetInfo dataset_info_from_json(const std::string& text, const std::string& source) {
  const Json root = parse_json(text, source);
  const JsonObject object(root, source);
  object.require_schema(kSchema);
  object.refuse_unknown_keys({"schema", "tokenizer", "tokenizer_name", "tokenizer_digest", "vocabulary",
                              "end_of_document", "maximum_id", "token_type", "tokens", "documents", "bin_bytes",
                              "idx_bytes", "bin_digest", "idx_digest", "document_lengths", "mask"});
  constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();
  DatasetInfo info;
  info.tokenizer = object.require_string("tokenizer");
  info.tokenizer_name = object.get_string("tokenizer_name", "");
  info.tokenizer_digest = object.get_string("tokenizer_digest", "");
  info.vocabulary = object.require_int("vocabulary", 1, kMostIds);
  info.end_of_document = object.get_int("end_of_document", -1, 0, kMostIds);
  info.maximum_id = object.require_int("maximum_id", 0, info.vocabulary - 1);
  info.token_type = object.require_string("token_type");
  info.tokens = object.require_int("tokens", 1, kMost);
  info.documents = object.require_int("documents", 1, kMost);
  info.bin_bytes = object.require_int("bin_bytes", 1, kMost);
  info.idx_bytes = object.require_int("idx_bytes", 1, kMost);
  info.bin_digest = object.require_string("bin_digest");
  info.idx_digest = object.require_string("idx_digest");
  for (const JsonObject& bin : object.get_objects("document_lengths")) {
    info.document_lengths.push_back({bin.require_int("least", 0, kMost), bin.require_int("most", 0, kMost),
                                     bin.require_int("documents", 0, kMost), bin.require_int("tokens", 0, kMost)});
  }
  if (object.has("mask")) {
    const JsonObject mask = object.require_object("mask");
    mask.refuse_unknown_keys({"counted_tokens", "bytes", "digest"});
    info.mask = {mask.require_int("counted_tokens", 0, info.tokens), mask.require_int("bytes", 1, kMost),
                 mask.require_string("digest")};
  }
  return info;
}

std::string dataset_summary_to_json(const DatasetSummary& summary) {
  const TokenOrigin& origin = summary.origin;
  const auto known = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  Json value;
  value["prefix"] = summary.prefix;
  value["format"] = origin.format;
  value["token_type"] = summary.token_type;
  value["tokens"] = summary.tokens;
  value["counted_tokens"] = summary.counted_tokens;
  value["documents"] = known(summary.counts.documents);
  value["sequences"] = known(summary.counts.sequences);
  value["files"] = summary.counts.files;
  value["bin_bytes"] = summary.bin_bytes;
  value["validation_begin"] = known(summary.own_validation_begin);
  value["tokenizer"] = origin.tokenizer.empty() ? Json(nullptr) : Json(origin.tokenizer);
  value["vocabulary"] = origin.vocabulary == 0 ? Json(nullptr) : Json(origin.vocabulary);
  if (summary.info) value["tokenizer"] = summary.info->tokenizer, value["vocabulary"] = summary.info->vocabulary;
  value["document_lengths"] = summary.document_lengths ? bins_to_json(*summary.document_lengths) : Json(nullptr);
  value["dataset"] = summary.info ? info_to_json(*summary.info) : Json(nullptr);
  return json_text(value);
}

std::string dataset_verdict_to_json(const DatasetVerdict& verdict) {
  return json_text(Json{{"passed", verdict.passed()},
                        {"tokens", verdict.tokens},
                        {"maximum_id", verdict.maximum_id},
                        {"problems", verdict.problems}});
}

}  // namespace foresail
