#include "model/model_config.h"

#include <gtest/gtest.h>

#include "model/json_file.h"

namespace afd::model {
namespace {

std::string text_of(const std::string& model) {
  return read_text_file(AFD_MODELS "/" + model + "/config.json", 1u << 20).value();
}

/// The file of `model`, with the value of one key replaced (or the key added).
std::string with(const std::string& key, const std::string& value,
                 const std::string& model = "variants/v3") {
  JsonValue json = parse_json(text_of(model)).value();
  const JsonValue replacement = parse_json(value).value();
  for (JsonMember& member : json.members) {
    if (member.key == key) {
      member.value = replacement;
      return write_json(json);
    }
  }
  json.members.push_back({key, replacement});
  return write_json(json);
}

std::string without(const std::string& key, const std::string& model = "variants/v3") {
  JsonValue json = parse_json(text_of(model)).value();
  std::erase_if(json.members, [&](const JsonMember& member) { return member.key == key; });
  return write_json(json);
}

std::string problem(const std::string& text) {
  const Result<ModelConfig> config = parse_model_config(text);
  if (config) {
    return "accepted";
  }
  EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
  return config.error().message;
}

TEST(ModelConfigTest, ReadsTheSecondGeneration) {
  const Result<ModelConfig> config = load_model_config(AFD_MODELS "/austen-moe");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->model_type, "deepseek_v2");
  EXPECT_EQ(config->vocab_size, 2048u);
  EXPECT_EQ(config->hidden_size, 256u);
  EXPECT_EQ(config->intermediate_size, 768u);
  EXPECT_EQ(config->moe_intermediate_size, 80u);
  EXPECT_EQ(config->num_hidden_layers, 5u);
  EXPECT_EQ(config->num_attention_heads, 8u);
  EXPECT_EQ(config->n_shared_experts, 2u);
  EXPECT_EQ(config->n_routed_experts, 16u);
  EXPECT_EQ(config->num_experts_per_tok, 2u);
  EXPECT_EQ(config->q_lora_rank, 0u);
  EXPECT_EQ(config->kv_lora_rank, 64u);
  EXPECT_EQ(config->qk_nope_head_dim, 32u);
  EXPECT_EQ(config->qk_rope_head_dim, 16u);
  EXPECT_EQ(config->v_head_dim, 32u);
  EXPECT_EQ(config->max_position_embeddings, 512u);
  EXPECT_EQ(config->topk_method, TopkMethod::kGreedy);
  EXPECT_EQ(config->scoring_func, ScoringFunc::kSoftmax);
  EXPECT_EQ(config->rms_norm_eps, 1e-6);
  EXPECT_FALSE(config->yarn);
  EXPECT_EQ(config->bos_token_id, 2046);
  EXPECT_EQ(config->eos_token_ids, (std::vector<std::int32_t>{2047}));
}

TEST(ModelConfigTest, ReadsTheThirdGeneration) {
  const Result<ModelConfig> config = load_model_config(AFD_MODELS "/variants/v3");
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(config->scoring_func, ScoringFunc::kSigmoid);
  EXPECT_EQ(config->n_group, 4u);
  EXPECT_EQ(config->topk_group, 2u);
  EXPECT_TRUE(config->norm_topk_prob);
  EXPECT_EQ(config->routed_scaling_factor, 2.5);
  // Later writers of this generation leave the names out.
  EXPECT_EQ(parse_model_config(without("topk_method")).value().topk_method, TopkMethod::kNoauxTc);
  EXPECT_EQ(parse_model_config(without("scoring_func")).value().scoring_func,
            ScoringFunc::kSigmoid);
}

TEST(ModelConfigTest, ReadsYarn) {
  const Result<ModelConfig> config = load_model_config(AFD_MODELS "/variants/yarn_mscale");
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_TRUE(config->yarn);
  EXPECT_EQ(config->yarn->factor, 40.0);
  EXPECT_EQ(config->yarn->mscale, 1.0);
  EXPECT_EQ(config->yarn->mscale_all_dim, 0.5);
  EXPECT_EQ(config->yarn->original_max_position_embeddings, 64u);
}

TEST(ModelConfigTest, KnowsWhichLayersHaveExperts) {
  const ModelConfig config = load_model_config(AFD_MODELS "/variants/layer_freq").value();
  std::vector<bool> found;
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    found.push_back(config.is_moe_layer(layer));
  }
  EXPECT_EQ(found, (std::vector<bool>{false, false, true, false, true}));
  EXPECT_FALSE(ModelConfig{}.is_moe_layer(3));
}

TEST(ModelConfigTest, SeveralEndTokensAreFine) {
  EXPECT_EQ(parse_model_config(with("eos_token_id", "[3, 5]")).value().eos_token_ids,
            (std::vector<std::int32_t>{3, 5}));
  EXPECT_TRUE(parse_model_config(with("eos_token_id", "null")).value().eos_token_ids.empty());
  EXPECT_EQ(parse_model_config(without("bos_token_id")).value().bos_token_id, -1);
}

TEST(ModelConfigTest, AModelWithoutExpertsNeedsNoRouter) {
  JsonValue json = parse_json(text_of("variants/v3")).value();
  std::erase_if(json.members, [](const JsonMember& member) {
    return member.key.find("expert") != std::string::npos ||
           member.key.find("topk") != std::string::npos || member.key == "moe_intermediate_size";
  });
  const Result<ModelConfig> config = parse_model_config(write_json(json));
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_FALSE(config->is_moe_layer(2));
}

TEST(ModelConfigTest, RefusesOtherFamiliesByName) {
  EXPECT_EQ(problem(with("model_type", "\"llama\"")),
            "model_type is \"llama\", expected \"deepseek_v2\" or \"deepseek_v3\": no other family "
            "is supported");
  EXPECT_TRUE(problem(without("model_type")).starts_with("model_type is missing"));
  EXPECT_TRUE(problem(with("model_type", "3")).starts_with("model_type is 3"));
}

TEST(ModelConfigTest, RefusesTextThatIsNoConfiguration) {
  EXPECT_EQ(problem("[]"), "the text is an array, expected an object");
  EXPECT_TRUE(problem("").starts_with("line 1, column 1"));
  EXPECT_NE(problem("{\"a\": 1, \"a\": 2}").find("twice"), std::string::npos);
}

TEST(ModelConfigTest, RefusesWhatItCannotCompute) {
  EXPECT_EQ(problem(with("attention_bias", "true")),
            "attention_bias is true, expected false: nothing else is supported");
  EXPECT_EQ(problem(with("hidden_act", "\"gelu\"")),
            "hidden_act is \"gelu\", expected \"silu\": nothing else is supported");
  EXPECT_EQ(
      problem(with("quantization_config", "{\"quant_method\": \"fp8\"}")),
      "quantization_config is {\"quant_method\":\"fp8\"}, expected none: it is not supported");
  EXPECT_EQ(problem(with("rope_scaling", "{\"type\": \"linear\", \"factor\": 2}")),
            "rope_scaling has type \"linear\", expected \"yarn\": nothing else is supported");
  EXPECT_EQ(problem(with("rope_scaling", "{\"factor\": 2}")),
            "rope_scaling has type none, expected \"yarn\": nothing else is supported");
  EXPECT_EQ(problem(with("rope_scaling", "3")),
            "rope_scaling is 3, expected null or an object of type \"yarn\"");
  EXPECT_NE(problem(with("rope_parameters", "{\"rope_theta\": 1}")), "accepted");
  EXPECT_NE(problem(with("rope_interleave", "false")), "accepted");
  EXPECT_NE(problem(with("pretraining_tp", "2")), "accepted");
  EXPECT_EQ(problem(with("num_key_value_heads", "2")),
            "num_key_value_heads is 2, expected num_attention_heads, 4");
  EXPECT_EQ(problem(with("topk_method", "\"greedy\"")),
            "topk_method is \"greedy\", expected \"noaux_tc\": nothing else is supported");
  EXPECT_EQ(problem(with("topk_method", "\"noaux_tc\"", "variants/f16")),
            "topk_method is \"noaux_tc\", expected \"greedy\" or \"group_limited_greedy\"");
  EXPECT_EQ(problem(with("scoring_func", "\"softmax\"")),
            "scoring_func is \"softmax\", expected \"sigmoid\": nothing else is supported");
}

TEST(ModelConfigTest, RefusesKeysThatAreMissing) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim",
                          "qk_rope_head_dim", "v_head_dim", "max_position_embeddings",
                          "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}) {
    EXPECT_TRUE(problem(without(key)).starts_with(std::string(key) + " is missing, expected"))
        << key << ": " << problem(without(key));
  }
}

TEST(ModelConfigTest, RefusesValuesOfTheWrongKindOrOutOfRange) {
  EXPECT_EQ(problem(with("hidden_size", "0")),
            "hidden_size is 0, expected an integer in [1, 1048576]");
  for (const char* value : {"-1", "1.5", "64.0", "\"64\"", "true", "[64]", "18446744073709551616",
                            "4294967360", "1048577"}) {
    EXPECT_TRUE(problem(with("hidden_size", value)).starts_with("hidden_size is ")) << value;
  }
  EXPECT_EQ(problem(with("rope_theta", "1")),
            "rope_theta is 1, expected a number above 1, up to 1e12");
  EXPECT_EQ(problem(with("rms_norm_eps", "0.0")),
            "rms_norm_eps is 0.0, expected a positive number up to 1e12");
  EXPECT_EQ(problem(with("tie_word_embeddings", "1")),
            "tie_word_embeddings is 1, expected true or false");
  EXPECT_EQ(problem(with("qk_rope_head_dim", "7")),
            "qk_rope_head_dim is 7, expected an even number: it is rotated in pairs");
  EXPECT_EQ(problem(with("bos_token_id", "128")),
            "bos_token_id is 128, expected one or a list of ids below vocab_size, 128");
  EXPECT_EQ(problem(with("eos_token_id", "[127, 128]")),
            "eos_token_id is [127,128], expected ids below vocab_size, 128");
  EXPECT_EQ(problem(with("eos_token_id", "-1")),
            "eos_token_id is -1, expected one or a list of ids below vocab_size, 128");
  EXPECT_EQ(problem(with("bos_token_id", "[1, 2]")),
            "bos_token_id is [1,2], expected one token id");
}

TEST(ModelConfigTest, RefusesValuesThatContradictEachOther) {
  EXPECT_EQ(problem(with("num_experts_per_tok", "9")),
            "num_experts_per_tok is 9, expected an integer in [1, 8]");
  EXPECT_EQ(problem(with("num_experts_per_tok", "5")),
            "num_experts_per_tok is 5, expected at most the 4 experts of the chosen groups");
  EXPECT_EQ(problem(with("n_group", "3")), "n_group is 3, expected a divisor of 8 routed experts");
  EXPECT_EQ(problem(with("topk_group", "5")), "topk_group is 5, expected at most n_group, 4");
  EXPECT_EQ(problem(with("n_group", "8")),
            "n_group is 8, expected groups of at least two of 8 routed experts: a group's score is "
            "the sum of its two best");
  EXPECT_EQ(problem(with("n_routed_experts", "0")),
            "n_shared_experts is 1, expected none, because there are no routed experts");
  EXPECT_EQ(
      problem(with("rope_scaling",
                   "{\"type\": \"yarn\", \"factor\": 0.5, \"beta_fast\": 1, \"beta_slow\": 2, "
                   "\"original_max_position_embeddings\": 64}")),
      "rope_scaling.factor is 0.5, expected at least 1\n"
      "rope_scaling.beta_fast is 1, expected at least beta_slow");
}

TEST(ModelConfigTest, ReportsEverythingAtOnce) {
  EXPECT_EQ(problem(with("hidden_size", "0", "variants/f16")),
            "hidden_size is 0, expected an integer in [1, 1048576]");
  std::string text = with("hidden_size", "0");
  text.replace(text.find("\"v_head_dim\":16"), 15, "\"v_head_dim\":-1");
  EXPECT_EQ(problem(text),
            "hidden_size is 0, expected an integer in [1, 1048576]\n"
            "v_head_dim is -1, expected an integer in [1, 1024]");
}

TEST(ModelConfigTest, NamesTheFile) {
  const Result<ModelConfig> config = load_model_config("/nowhere");
  ASSERT_FALSE(config);
  EXPECT_EQ(config.error().message, "/nowhere/config.json: No such file or directory (errno 2)");
}

}  // namespace
}  // namespace afd::model
