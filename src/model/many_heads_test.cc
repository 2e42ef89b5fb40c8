// More heads than a transposed block of the cache has floats: wide models with a small latent.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "model/model.h"

namespace afd::model {
namespace {

namespace fs = std::filesystem;

constexpr int kHeads = 512;

constexpr const char* kConfig = R"({
  "model_type": "deepseek_v3", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 16,
  "moe_intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 512,
  "num_key_value_heads": 512, "n_shared_experts": 1, "n_routed_experts": 4,
  "num_experts_per_tok": 2, "routed_scaling_factor": 1.0, "topk_method": "noaux_tc", "n_group": 1,
  "topk_group": 1, "norm_topk_prob": true, "scoring_func": "sigmoid", "first_k_dense_replace": 1,
  "moe_layer_freq": 1, "kv_lora_rank": 8, "q_lora_rank": null, "qk_nope_head_dim": 4,
  "qk_rope_head_dim": 2, "v_head_dim": 4, "max_position_embeddings": 64, "rope_theta": 10000.0,
  "rope_scaling": null, "rms_norm_eps": 1e-06, "hidden_act": "silu", "attention_bias": false,
  "tie_word_embeddings": false, "torch_dtype": "float32", "bos_token_id": 6, "eos_token_id": 7})";

/// A safetensors file of small numbers that differ.
void write_weights(const fs::path& path) {
  const std::string layer = "model.layers.0.";
  const std::vector<std::pair<std::string, std::vector<int>>> shapes = {
      {"model.embed_tokens.weight", {8, 16}},
      {layer + "input_layernorm.weight", {16}},
      {layer + "post_attention_layernorm.weight", {16}},
      {layer + "self_attn.q_proj.weight", {kHeads * 6, 16}},
      {layer + "self_attn.kv_a_proj_with_mqa.weight", {10, 16}},
      {layer + "self_attn.kv_a_layernorm.weight", {8}},
      {layer + "self_attn.kv_b_proj.weight", {kHeads * 8, 8}},
      {layer + "self_attn.o_proj.weight", {16, kHeads * 4}},
      {layer + "mlp.gate_proj.weight", {16, 16}},
      {layer + "mlp.up_proj.weight", {16, 16}},
      {layer + "mlp.down_proj.weight", {16, 16}},
      {"model.norm.weight", {16}},
      {"lm_head.weight", {8, 16}}};
  std::string header = "{";
  std::vector<float> values;
  for (const auto& [name, shape] : shapes) {
    const std::size_t begin = values.size();
    const int count = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    for (int i = 0; i < count; ++i) {
      values.push_back(0.25f * std::sin(static_cast<float>(values.size())));
    }
    header += (begin == 0 ? "\"" : ",\"") + name + R"(":{"dtype":"F32","shape":[)" +
              std::to_string(shape[0]) +
              (shape.size() == 1 ? std::string() : "," + std::to_string(shape[1])) +
              R"(],"data_offsets":[)" + std::to_string(begin * sizeof(float)) + "," +
              std::to_string(values.size() * sizeof(float)) + "]}";
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << header;
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(float)));
}

TEST(ManyHeadsTest, EveryHeadsSumHasItsPlace) {
  std::string name = (fs::temp_directory_path() / "afd_many_heads_test_XXXXXX").string();
  ASSERT_NE(::mkdtemp(name.data()), nullptr);
  const fs::path directory = name;
  std::ofstream(directory / "config.json") << kConfig;
  write_weights(directory / "model.safetensors");
  const Result<Checkpoint> checkpoint = Checkpoint::open(name);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto attention = AttentionPart::load(*checkpoint, {});
  fs::remove_all(directory);
  ASSERT_TRUE(attention) << attention.error().message;

  // Together, then one by one with a fresh scratch: the same bits.
  const std::vector<std::int32_t> token_ids = {1, 2, 3, 4, 5};
  std::vector<float> start(token_ids.size() * 16);
  (*attention)->embed(token_ids, start.data());
  std::vector<float> together = start;
  std::vector<float> hidden(start.size());
  {
    Scratch scratch;
    KvCache cache((*attention)->config(), 8);
    std::vector<Row> rows;
    for (std::uint32_t position = 0; position < token_ids.size(); ++position) {
      rows.push_back({&cache, position});
    }
    (*attention)->attention(0, rows, together.data(), hidden.data(), scratch);
  }
  Scratch scratch;
  KvCache cache((*attention)->config(), 8);
  std::vector<float> alone = start;
  for (std::uint32_t position = 0; position < token_ids.size(); ++position) {
    const Row row{&cache, position};
    (*attention)
        ->attention(0, {&row, 1}, alone.data() + std::size_t{position} * 16,
                    hidden.data() + std::size_t{position} * 16, scratch);
  }
  EXPECT_EQ(together, alone);
  EXPECT_NE(together, start);
  for (const float value : together) {
    ASSERT_TRUE(std::isfinite(value));
  }
}

}  // namespace
}  // namespace afd::model
