#include "model/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "model/json_file.h"
#include "model/model.h"

namespace afd::model {
namespace {

namespace fs = std::filesystem;

/// A copy of one of the checkpoints, to be damaged; gone with the test.
class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "afd_checkpoint_test_XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }

  void copy_model(const std::string& name) {
    for (const auto& entry : fs::directory_iterator(AFD_MODELS "/" + name)) {
      fs::copy(entry.path(), directory_ / entry.path().filename());
    }
  }
  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  std::string read(const std::string& name) {
    return read_text_file((directory_ / name).string(), 1u << 30).value();
  }
  void replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = read(name);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    write(name, text);
  }
  std::string problem() {
    const Result<Checkpoint> checkpoint = Checkpoint::open(directory_.string());
    if (checkpoint) {
      return "accepted";
    }
    EXPECT_EQ(checkpoint.error().code, ErrorCode::kInvalidArgument);
    std::string message = checkpoint.error().message;
    EXPECT_TRUE(message.starts_with(directory_.string())) << message;
    return message.substr(directory_.string().size());
  }

  fs::path directory_;
};

TEST_F(CheckpointTest, GivesTensorsAsViewsOfTheFile) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(AFD_MODELS "/variants/v3");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->config().model_type, "deepseek_v3");
  EXPECT_TRUE(checkpoint->has_tensor("model.norm.weight"));
  EXPECT_FALSE(checkpoint->has_tensor("model.norm"));
  EXPECT_EQ(checkpoint->tensor_names().size(), 85u);

  const Result<ConstTensorView> norm = checkpoint->tensor("model.norm.weight", Shape{64});
  ASSERT_TRUE(norm) << norm.error().message;
  EXPECT_EQ(norm->dtype, kBFloat16);
  EXPECT_EQ(norm->size_bytes(), 128u);
}

TEST_F(CheckpointTest, NamesATensorThatIsMissingOrHasAnotherShape) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(AFD_MODELS "/variants/v3");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const std::string directory = AFD_MODELS "/variants/v3";
  EXPECT_EQ(checkpoint->tensor("model.norm", Shape{64}).error().message,
            directory + ": no tensor \"model.norm\", expected one of [64]");
  EXPECT_EQ(checkpoint->tensor("model.norm.weight", Shape{32}).error().message,
            directory + ": tensor \"model.norm.weight\" is [64], expected [32]");
}

TEST_F(CheckpointTest, AFifoIsRefusedAtOnce) {
  for (const char* name : {"model.safetensors", "config.json"}) {
    SCOPED_TRACE(name);
    copy_model("variants/v3");
    fs::remove(directory_ / name);
    ASSERT_EQ(::mkfifo((directory_ / name).c_str(), 0600), 0);
    EXPECT_EQ(problem(), "/" + std::string(name) + ": not a regular file");
    for (const auto& entry : fs::directory_iterator(directory_)) {
      fs::remove(entry.path());
    }
  }
}

TEST_F(CheckpointTest, ACopyKeepsTheMappingAlive) {
  copy_model("variants/v3");
  std::optional<Checkpoint> copy;
  {
    const Result<Checkpoint> checkpoint = Checkpoint::open(directory_.string());
    ASSERT_TRUE(checkpoint);
    copy = *checkpoint;
  }
  fs::remove_all(directory_);
  const ConstTensorView norm = copy->tensor("model.norm.weight", Shape{64}).value();
  EXPECT_NE(norm.bytes()[0] | norm.bytes()[1], std::byte{0});
}

TEST_F(CheckpointTest, EqualCheckpointsHaveEqualHashes) {
  const std::string whole = Checkpoint::open(AFD_MODELS "/variants/v3").value().content_hash();
  EXPECT_EQ(whole.size(), 64u);
  EXPECT_EQ(whole.find_first_not_of("0123456789abcdef"), std::string::npos);
  copy_model("variants/v3");
  EXPECT_EQ(Checkpoint::open(directory_.string()).value().content_hash(), whole);
}

TEST_F(CheckpointTest, AnotherWeightOrSettingIsAnotherHash) {
  copy_model("variants/v3");
  const std::string before = Checkpoint::open(directory_.string()).value().content_hash();
  std::string weights = read("model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  write("model.safetensors", weights);
  const std::string trained = Checkpoint::open(directory_.string()).value().content_hash();
  EXPECT_NE(trained, before);
  replace("config.json", "\"routed_scaling_factor\": 2.5", "\"routed_scaling_factor\": 2.0");
  EXPECT_NE(Checkpoint::open(directory_.string()).value().content_hash(), trained);
}

TEST_F(CheckpointTest, RefusesADirectoryWithoutConfiguration) {
  EXPECT_EQ(problem(), "/config.json: No such file or directory (errno 2)");
}

TEST_F(CheckpointTest, RefusesADirectoryWithoutWeights) {
  copy_model("variants/v3");
  fs::remove(directory_ / "model.safetensors");
  EXPECT_EQ(problem(), ": neither model.safetensors nor model.safetensors.index.json");
}

TEST_F(CheckpointTest, RefusesATruncatedFile) {
  copy_model("variants/v3");
  fs::resize_file(directory_ / "model.safetensors", 100'000);
  EXPECT_TRUE(problem().starts_with("/model.safetensors: tensor "));
  fs::resize_file(directory_ / "model.safetensors", 0);
  EXPECT_EQ(problem(), "/model.safetensors: truncated: the file has 0 bytes, expected at least 8");
}

TEST_F(CheckpointTest, RefusesAShardThatIsMissing) {
  copy_model("variants/sharded");
  ASSERT_EQ(problem(), "accepted");
  fs::remove(directory_ / "model-00002-of-00003.safetensors");
  EXPECT_EQ(problem(), "/model-00002-of-00003.safetensors: No such file or directory (errno 2)");
}

TEST_F(CheckpointTest, RefusesATensorThatIsNotInItsShard) {
  copy_model("variants/sharded");
  replace("model.safetensors.index.json",
          "\"model.norm.weight\": \"model-00003-of-00003.safetensors\"",
          "\"model.norm.weight\": \"model-00001-of-00003.safetensors\"");
  EXPECT_EQ(
      problem(),
      "/model-00003-of-00003.safetensors: tensor \"model.norm.weight\" is here, but the index "
      "lists it in model-00001-of-00003.safetensors");
  replace("model.safetensors.index.json",
          "\"model.norm.weight\": \"model-00001-of-00003.safetensors\"",
          "\"model.nor\": \"model-00003-of-00003.safetensors\"");
  EXPECT_EQ(
      problem(),
      "/model-00003-of-00003.safetensors: tensor \"model.norm.weight\" is here, but the index "
      "lists it nowhere");
  replace("model.safetensors.index.json", "\"model.nor\": \"model-00003-of-00003.safetensors\"",
          "\"model.norm.weight\": \"model-00003-of-00003.safetensors\", "
          "\"x\": \"model-00003-of-00003.safetensors\"");
  EXPECT_EQ(problem(),
            "/model-00003-of-00003.safetensors: no tensor \"x\", which the index lists there");
}

TEST_F(CheckpointTest, RefusesAnIndexThatLeadsOutOfTheDirectory) {
  for (const char* file : {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", ".",
                           "a\\u0000b", "a\\\\b"}) {
    copy_model("variants/sharded");
    replace("model.safetensors.index.json",
            "\"model.norm.weight\": \"model-00003-of-00003.safetensors\"",
            std::string("\"model.norm.weight\": \"") + file + "\"");
    EXPECT_NE(problem().find("expected the name of a file in the same directory"),
              std::string::npos)
        << file;
    TearDown();
    fs::create_directory(directory_);
  }
}

TEST_F(CheckpointTest, RefusesAnIndexWithoutAMap) {
  copy_model("variants/sharded");
  for (const char* text : {"{}", "[]", "{\"weight_map\": {}}", "{\"weight_map\": 3}"}) {
    write("model.safetensors.index.json", text);
    EXPECT_EQ(problem(),
              "/model.safetensors.index.json: no weight_map, expected an object of "
              "tensor names to files");
  }
  write("model.safetensors.index.json", "{");
  EXPECT_TRUE(problem().starts_with("/model.safetensors.index.json: line 1, column"));
}

TEST_F(CheckpointTest, APartSaysWhichOfItsTensorsIsMissing) {
  copy_model("variants/v3");
  // Same length, so that the file stays whole.
  replace("model.safetensors", "model.layers.1.mlp.experts.3.up_proj.weight",
          "model.layers.1.mlp.experts.3.xx_proj.weight");
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory_.string());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto ffn = FfnPart::load(*checkpoint, {});
  ASSERT_FALSE(ffn);
  EXPECT_EQ(ffn.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ffn.error().message,
            directory_.string() +
                ": no tensor \"model.layers.1.mlp.experts.3.up_proj.weight\", expected one of [32, "
                "64]");
  // Attention ranks do not own it.
  EXPECT_TRUE(AttentionPart::load(*checkpoint, {}));
}

TEST_F(CheckpointTest, EachPartLoadsOnlyWhatItOwns) {
  copy_model("variants/v3");
  const auto rename = [&](const char* from, const char* to) {
    replace("model.safetensors", from, to);
  };
  rename("model.layers.1.self_attn.o_proj.weight", "model.layers.1.self_attn.x_proj.weight");
  rename("model.layers.1.mlp.gate.weight", "model.layers.1.mlp.xxxx.weight");
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory_.string());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_FALSE(AttentionPart::load(*checkpoint, {}));
  EXPECT_FALSE(FfnPart::load(*checkpoint, {}));
  EXPECT_TRUE(FfnPart::load(*checkpoint, {.gate_on_attention = true}));
}

TEST_F(CheckpointTest, RefusesWeightsOfAnotherDtype) {
  copy_model("variants/f16");
  replace("model.safetensors", "\"dtype\":\"F16\"", "\"dtype\":\"XXX\"");
  EXPECT_NE(problem().find("expected BF16, F16 or F32"), std::string::npos);
}

TEST_F(CheckpointTest, RefusesIntegersAsWeights) {
  copy_model("variants/v3");
  replace("model.safetensors", "\"dtype\":\"F32\"", "\"dtype\":\"I32\"");
  const Result<Checkpoint> checkpoint = Checkpoint::open(directory_.string());
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto ffn = FfnPart::load(*checkpoint, {});
  ASSERT_FALSE(ffn);
  EXPECT_EQ(ffn.error().message,
            directory_.string() +
                ": tensor \"model.layers.1.mlp.gate.e_score_correction_bias\" has dtype int32, "
                "expected bfloat16, float16 or float32");
}

}  // namespace
}  // namespace afd::model
