#include <afd/config.h>

namespace afd {

std::string_view to_string(Role role) {
  return role == Role::kAttention ? "attention" : "ffn";
}

Result<Role> parse_role(std::string_view text) {
  if (text == "attention") {
    return Role::kAttention;
  }
  if (text == "ffn") {
    return Role::kFfn;
  }
  return fail(ErrorCode::kInvalidArgument,
              "AFD role must be one of ('attention', 'ffn'), got '" + std::string(text) + "'");
}

}  // namespace afd
