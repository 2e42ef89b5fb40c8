#include "model/checkpoint_review.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "model/json_file.h"

namespace afd::model {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Checkpoint open_model(const std::string& directory) {
  Result<Checkpoint> checkpoint = Checkpoint::open(directory);
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return *std::move(checkpoint);
}

/// A copy of a checkpoint, to be changed; gone with the test.
class CheckpointReviewTest : public ::testing::Test {
 protected:
  CheckpointReviewTest() {
    std::string name = (fs::temp_directory_path() / "afd_checkpoint_review_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    directory_ = name;
    for (const auto& entry : fs::directory_iterator(AFD_MODELS "/variants/v3")) {
      fs::copy(entry.path(), directory_ / entry.path().filename());
    }
  }
  ~CheckpointReviewTest() override { fs::remove_all(directory_); }

  std::string read(const char* name) {
    return read_text_file((directory_ / name).string(), 1u << 30).value();
  }
  void write(const char* name, const std::string& text) {
    std::ofstream(directory_ / name, std::ios::binary) << text;
  }
  void replace(const char* name, const std::string& from, const std::string& to) {
    std::string text = read(name);
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write(name, text.replace(at, from.size(), to));
  }
  std::vector<std::string> unused() { return unused_tensors(open_model(directory_.string())); }

  fs::path directory_;
};

TEST_F(CheckpointReviewTest, EveryTensorOfEveryKindOfModelIsUsed) {
  for (const auto& entry : fs::directory_iterator(AFD_MODELS "/variants")) {
    EXPECT_THAT(unused_tensors(open_model(entry.path().string())), IsEmpty()) << entry.path();
  }
  EXPECT_THAT(unused_tensors(open_model(AFD_MODELS "/austen-moe")), IsEmpty());
}

TEST_F(CheckpointReviewTest, NamesTensorsThatThePartsDoNotRead) {
  // Same lengths, so that the file stays whole.
  replace("model.safetensors", "model.layers.1.mlp.experts.3.up_proj.weight",
          "model.layers.1.mlp.experts.9.up_proj.weight");
  replace("model.safetensors", "\"model.norm.weight\"", "\"model.morn.weight\"");
  replace("model.safetensors", "model.layers.2.self_attn.o_proj.weight",
          "model.layers.2.self_attn.o_proj.scales");
  EXPECT_THAT(unused(), ElementsAre("model.layers.1.mlp.experts.9.up_proj.weight",
                                    "model.layers.2.self_attn.o_proj.scales", "model.morn.weight"));
}

TEST_F(CheckpointReviewTest, LayersBeyondTheModelsAreUsedOnlyWhereTheConfigAnnouncesThem) {
  replace("config.json", "\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
  const std::vector<std::string> names = unused();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    EXPECT_TRUE(name.starts_with("model.layers.2.")) << name;
  }
  replace("config.json", "\"num_hidden_layers\": 2",
          "\"num_nextn_predict_layers\": 1, \"num_hidden_layers\": 2");
  EXPECT_THAT(unused(), IsEmpty());
}

TEST_F(CheckpointReviewTest, NamesTheFirstWeightThatIsNoNumber) {
  EXPECT_EQ(find_non_finite(open_model(directory_.string())), std::nullopt);
  const std::size_t offset = [&] {
    const Checkpoint checkpoint = open_model(directory_.string());
    const ConstTensorView norm = checkpoint.tensor("model.norm.weight", Shape{64}).value();
    // Where it is in the file: by content, since a view does not tell.
    const std::string bytes(static_cast<const char*>(norm.data), norm.size_bytes());
    return read("model.safetensors").find(bytes);
  }();
  ASSERT_NE(offset, std::string::npos);
  for (const auto& [bits, what] :
       {std::pair{"\xc0\x7f", "NaN"}, std::pair{"\x80\xff", "infinite"}}) {
    std::string text = read("model.safetensors");
    write("model.safetensors", text.replace(offset + 2 * 5, 2, bits));
    EXPECT_EQ(find_non_finite(open_model(directory_.string())),
              "tensor \"model.norm.weight\" is " + std::string(what) + " at element 5 of [64]");
  }
  EXPECT_EQ(find_non_finite(open_model(directory_.string()), 64), std::nullopt);
}

}  // namespace
}  // namespace afd::model
