#pragma once

#include "model/image.h"

namespace galley::model {

// Bicubic (a = -0.5) with antialiasing, to the bit what PIL's resize gives: columns first, then
// rows, each pass rounded to 8 bits; weights are normalised in double and held as integers of 22
// fraction bits; when shrinking, the filter is widened by the factor. A side that stays is not
// filtered.
[[nodiscard]] Image resize_bicubic(const Image& image, int width, int height);

// The image scaled to fit into width x height with its aspect ratio kept, centred, the rest filled
// with grey 127 (PIL `ImageOps.pad`, spec model 10.1). An image so narrow that a side would round
// to zero is stretched to the box.
[[nodiscard]] Image fit_into(const Image& image, int width, int height);

}  // namespace galley::model
