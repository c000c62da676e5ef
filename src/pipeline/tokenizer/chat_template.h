// What stands around a prompt before it is cut into tokens: Qwen3's chat template for one user's
// message, with thinking closed (FLUX.2 klein) and without (Z-Image).
#ifndef PARFAIT_PIPELINE_TOKENIZER_CHAT_TEMPLATE_H_
#define PARFAIT_PIPELINE_TOKENIZER_CHAT_TEMPLATE_H_

#include <string>
#include <string_view>

namespace parfait::pipeline {

inline std::string z_image_prompt(std::string_view prompt) {
  return "<|im_start|>user\n" + std::string(prompt) + "<|im_end|>\n<|im_start|>assistant\n";
}
inline std::string klein_prompt(std::string_view prompt) {
  return z_image_prompt(prompt) + "<think>\n\n</think>\n\n";
}

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_TOKENIZER_CHAT_TEMPLATE_H_
