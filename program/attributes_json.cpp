#include "program/attributes_json.h"

#include <string>
#include <vector>

#include "program/enum_json.h"

namespace foresail {
namespace {

constexpr int64_t kMostAttribute = int64_t{1} << 28;

constexpr const char* kCountRuleNames[] = {"every_tensor_rank", "tensor_rank_zero", "first_copy", "nobody",
                                           "every_expert_rank"};
constexpr const char* kRopeScalingNames[] = {"none", "linear", "llama3", "yarn"};
constexpr const char* kScoringNames[] = {"softmax", "sigmoid"};
constexpr const char* kGroupScoreNames[] = {"best_expert", "sum_of_best_two"};

struct AttributeField {
  const char* name;
  int64_t OpAttributes::*integer = nullptr;
  double OpAttributes::*real = nullptr;
};
constexpr AttributeField kAttributeFields[] = {
    {"sequence_length", &OpAttributes::sequence_length, nullptr},
    {"heads", &OpAttributes::heads, nullptr},
    {"kv_heads", &OpAttributes::kv_heads, nullptr},
    {"head_dim", &OpAttributes::head_dim, nullptr},
    {"value_dim", &OpAttributes::value_dim, nullptr},
    {"rope_dim", &OpAttributes::rope_dim, nullptr},
    {"window", &OpAttributes::window, nullptr},
    {"vocabulary", &OpAttributes::vocabulary, nullptr},
    {"context_parallel", &OpAttributes::context_parallel, nullptr},
    {"ring_step", &OpAttributes::ring_step, nullptr},
    {"rope_original_positions", &OpAttributes::rope_original_positions, nullptr},
    {"experts", &OpAttributes::experts, nullptr},
    {"experts_per_token", &OpAttributes::experts_per_token, nullptr},
    {"expert_groups", &OpAttributes::expert_groups, nullptr},
    {"groups_per_token", &OpAttributes::groups_per_token, nullptr},
    {"sequences", &OpAttributes::sequences, nullptr},
    {"expert_ranks", &OpAttributes::expert_ranks, nullptr},
    {"expert_rows", &OpAttributes::expert_rows, nullptr},
    {"routed_rows", &OpAttributes::routed_rows, nullptr},
    {"scale", nullptr, &OpAttributes::scale},
    {"epsilon", nullptr, &OpAttributes::epsilon},
    {"probability", nullptr, &OpAttributes::probability},
    {"rope_theta", nullptr, &OpAttributes::rope_theta},
    {"rope_factor", nullptr, &OpAttributes::rope_factor},
    {"rope_low_frequency", nullptr, &OpAttributes::rope_low_frequency},
    {"rope_high_frequency", nullptr, &OpAttributes::rope_high_frequency},
    {"rope_beta_fast", nullptr, &OpAttributes::rope_beta_fast},
    {"rope_beta_slow", nullptr, &OpAttributes::rope_beta_slow},
    {"rope_magnitude", nullptr, &OpAttributes::rope_magnitude},
    {"gate_scale", nullptr, &OpAttributes::gate_scale},
    {"balance_coefficient", nullptr, &OpAttributes::balance_coefficient},
    {"z_coefficient", nullptr, &OpAttributes::z_coefficient},
};

}  // namespace

Json json_of(const OpAttributes& attributes) {
  const OpAttributes standard;
  Json json = Json::object();
  for (const AttributeField& field : kAttributeFields) {
    if (field.integer != nullptr && attributes.*field.integer != standard.*field.integer) {
      json[field.name] = attributes.*field.integer;
    }
    if (field.real != nullptr && attributes.*field.real != standard.*field.real)
      json[field.name] = attributes.*field.real;
  }
  if (attributes.random_site != 0) json["random_site"] = attributes.random_site;
  if (attributes.decay) json["decay"] = true;
  if (attributes.rows_cut) json["rows_cut"] = true;
  if (attributes.heads_cut) json["heads_cut"] = true;
  if (attributes.count_rule != standard.count_rule)
    json["count_rule"] = name_in(kCountRuleNames, attributes.count_rule);
  if (attributes.rope_scaling != standard.rope_scaling) {
    json["rope_scaling"] = name_in(kRopeScalingNames, attributes.rope_scaling);
  }
  if (attributes.scoring != standard.scoring) json["scoring"] = name_in(kScoringNames, attributes.scoring);
  if (attributes.group_score != standard.group_score) {
    json["group_score"] = name_in(kGroupScoreNames, attributes.group_score);
  }
  if (!attributes.normalise_gates) json["normalise_gates"] = false;
  return json;
}

OpAttributes attributes_from(const JsonObject& object) {
  OpAttributes attributes;
  std::vector<std::string> known{"random_site",  "decay",   "rows_cut",    "heads_cut",      "count_rule",
                                 "rope_scaling", "scoring", "group_score", "normalise_gates"};
  for (const AttributeField& field : kAttributeFields) {
    known.emplace_back(field.name);
    if (field.integer != nullptr) {
      attributes.*field.integer = object.get_int(field.name, attributes.*field.integer, 0, kMostAttribute);
    } else {
      attributes.*field.real = object.get_number(field.name, attributes.*field.real, 0, 1e300);
    }
  }
  object.refuse_unknown_keys(known);
  attributes.random_site = static_cast<int32_t>(object.get_int("random_site", 0, 0, 15));
  attributes.decay = object.get_bool("decay", false);
  attributes.rows_cut = object.get_bool("rows_cut", false);
  attributes.heads_cut = object.get_bool("heads_cut", false);
  if (object.has("count_rule")) attributes.count_rule = value_in<CountRule>(kCountRuleNames, object, "count_rule");
  if (object.has("rope_scaling")) {
    attributes.rope_scaling = value_in<RopeScaling>(kRopeScalingNames, object, "rope_scaling");
  }
  if (object.has("scoring")) attributes.scoring = value_in<RouterScoring>(kScoringNames, object, "scoring");
  if (object.has("group_score")) {
    attributes.group_score = value_in<GroupScore>(kGroupScoreNames, object, "group_score");
  }
  attributes.normalise_gates = object.get_bool("normalise_gates", true);
  return attributes;
}

}  // namespace foresail
