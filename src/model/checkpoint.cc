#include "model/checkpoint.h"

#include <openssl/evp.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/json_file.h"
#include "model/mapped_file.h"
#include "model/safetensors.h"

namespace afd::model {
namespace {

constexpr std::uint64_t kConfigBytesMax = 16u << 20;
constexpr std::uint64_t kIndexBytesMax = 100'000'000;
constexpr std::size_t kShardsMax = 4096;

/// A plain file name of the checkpoint's own directory: an index may not lead elsewhere.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) { EVP_DigestInit_ex(context_, EVP_sha256(), nullptr); }
  ~Sha256() { EVP_MD_CTX_free(context_); }
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  /// With its length in front, so that no two lists of texts run into the same bytes.
  void add(std::string_view text) {
    const std::uint64_t length = text.size();
    unsigned char little_endian[8];
    for (std::size_t i = 0; i < sizeof little_endian; ++i) {
      little_endian[i] = static_cast<unsigned char>(length >> (8 * i));
    }
    EVP_DigestUpdate(context_, little_endian, sizeof little_endian);
    EVP_DigestUpdate(context_, text.data(), text.size());
  }

  std::string hex() {
    unsigned char digest[32];
    unsigned int size = 0;
    EVP_DigestFinal_ex(context_, digest, &size);
    std::string text;
    for (unsigned char byte : digest) {
      constexpr char kDigits[] = "0123456789abcdef";
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
    return text;
  }

 private:
  EVP_MD_CTX* context_;
};

}  // namespace

bool is_weight_dtype(DType dtype) {
  return dtype == kFloat32 || dtype == kFloat16 || dtype == kBFloat16;
}

struct Checkpoint::State {
  std::string directory;
  ModelConfig config;
  std::string config_text;  ///< Canonical JSON of config.json.
  std::vector<MappedFile> files;
  std::map<std::string, ConstTensorView, std::less<>> tensors;
};

Checkpoint::Checkpoint(std::shared_ptr<const State> state) : state_(std::move(state)) {}

Result<Checkpoint> Checkpoint::open(const std::string& directory) {
  auto state = std::make_shared<State>();
  state->directory = directory;
  Result<ModelConfig> config = load_model_config(directory);
  if (!config) {
    return fail(std::move(config).error());
  }
  state->config = *std::move(config);
  const Result<JsonValue> config_json = read_json_file(directory + "/config.json", kConfigBytesMax);
  if (!config_json) {
    return fail(config_json.error());
  }
  state->config_text = write_json(*config_json);

  // Where an index says a tensor is; empty for a single file.
  std::map<std::string, std::string> file_of_tensor;
  std::set<std::string> file_names;
  const std::string index_path = directory + "/model.safetensors.index.json";
  const std::string single_path = directory + "/model.safetensors";
  if (::access(single_path.c_str(), F_OK) == 0) {
    file_names.insert("model.safetensors");
  } else if (::access(index_path.c_str(), F_OK) == 0) {
    const Result<JsonValue> index = read_json_file(index_path, kIndexBytesMax);
    if (!index) {
      return fail(index.error());
    }
    const JsonValue* const weight_map = index->find("weight_map");
    if (weight_map == nullptr || weight_map->kind != JsonValue::Kind::kObject ||
        weight_map->members.empty()) {
      return fail(ErrorCode::kInvalidArgument,
                  index_path + ": no weight_map, expected an object of tensor names to files");
    }
    for (const auto& [name, file] : weight_map->members) {
      if (file.kind != JsonValue::Kind::kString || !is_plain_file_name(file.text)) {
        return fail(ErrorCode::kInvalidArgument,
                    index_path + ": tensor " + shown_name(name) + " is in " + shown(file) +
                        ", expected the name of a file in the same directory");
      }
      file_of_tensor[name] = file.text;
      file_names.insert(file.text);
    }
    if (file_names.size() > kShardsMax) {
      return fail(ErrorCode::kInvalidArgument,
                  index_path + ": " + std::to_string(file_names.size()) +
                      " shards, expected at most " + std::to_string(kShardsMax));
    }
  } else {
    return fail(ErrorCode::kInvalidArgument,
                directory + ": neither model.safetensors nor model.safetensors.index.json");
  }

  for (const std::string& file_name : file_names) {
    const std::string path = directory + "/" + file_name;
    Result<MappedFile> file = MappedFile::open(path);
    if (!file) {
      return fail(std::move(file).error());
    }
    const Result<std::vector<SafetensorsEntry>> entries = parse_safetensors(file->bytes());
    if (!entries) {
      return fail(Error(entries.error()).with_context(path));
    }
    for (const SafetensorsEntry& entry : *entries) {
      if (!file_of_tensor.empty()) {
        const auto listed = file_of_tensor.find(entry.name);
        if (listed == file_of_tensor.end() || listed->second != file_name) {
          return fail(ErrorCode::kInvalidArgument,
                      path + ": tensor \"" + entry.name + "\" is here, but the index lists it " +
                          (listed == file_of_tensor.end() ? "nowhere" : "in " + listed->second));
        }
      }
      state->tensors[entry.name] = {
          file->bytes().data() + entry.begin_bytes, entry.shape, entry.dtype, {}};
    }
    state->files.push_back(*std::move(file));
  }
  for (const auto& [name, file_name] : file_of_tensor) {
    if (state->tensors.find(name) == state->tensors.end()) {
      return fail(ErrorCode::kInvalidArgument, directory + "/" + file_name + ": no tensor " +
                                                   shown_name(name) +
                                                   ", which the index lists there");
    }
  }
  return Checkpoint(std::move(state));
}

const ModelConfig& Checkpoint::config() const {
  return state_->config;
}

const std::string& Checkpoint::directory() const {
  return state_->directory;
}

Result<ConstTensorView> Checkpoint::tensor(std::string_view name, const Shape& shape) const {
  const auto found = state_->tensors.find(name);
  if (found == state_->tensors.end()) {
    return fail(ErrorCode::kInvalidArgument, state_->directory + ": no tensor \"" +
                                                 std::string(name) + "\", expected one of " +
                                                 to_string(shape));
  }
  if (found->second.shape != shape) {
    return fail(ErrorCode::kInvalidArgument, state_->directory + ": tensor \"" + std::string(name) +
                                                 "\" is " + to_string(found->second.shape) +
                                                 ", expected " + to_string(shape));
  }
  if (!is_weight_dtype(found->second.dtype)) {
    return fail(ErrorCode::kInvalidArgument, state_->directory + ": tensor \"" + std::string(name) +
                                                 "\" has dtype " + to_string(found->second.dtype) +
                                                 ", expected bfloat16, float16 or float32");
  }
  return found->second;
}

bool Checkpoint::has_tensor(std::string_view name) const {
  return state_->tensors.find(name) != state_->tensors.end();
}

std::optional<ConstTensorView> Checkpoint::find_tensor(std::string_view name) const {
  const auto found = state_->tensors.find(name);
  return found == state_->tensors.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> Checkpoint::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(state_->tensors.size());
  for (const auto& [name, view] : state_->tensors) {
    names.push_back(name);
  }
  return names;
}

std::string Checkpoint::content_hash() const {
  // Three samples of this size from each tensor: whoever trained on has changed them, and a rank
  // that owns a part of the model need not read the rest.
  constexpr std::size_t kSampleBytes = 64;
  Sha256 hash;
  hash.add(state_->config_text);
  for (const auto& [name, view] : state_->tensors) {
    hash.add(name);
    hash.add(to_string(view.dtype) + to_string(view.shape));
    const std::string_view bytes(static_cast<const char*>(view.data),
                                 static_cast<std::size_t>(view.size_bytes()));
    const std::size_t size = std::min(bytes.size(), kSampleBytes);
    hash.add(bytes.substr(0, size));
    hash.add(bytes.substr((bytes.size() - size) / 2, size));
    hash.add(bytes.substr(bytes.size() - size, size));
  }
  return hash.hex();
}

}  // namespace afd::model
