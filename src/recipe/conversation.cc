#include "recipe/conversation.h"

namespace galley::recipe {

void Content::append(Content other) {
  const std::size_t base = text.size();
  text.append(other.text);
  for (Image& image : other.images) {
    image.offset += base;
    images.push_back(std::move(image));
  }
}

}  // namespace galley::recipe
