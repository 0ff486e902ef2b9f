// Stands in for a header of Gloo that Debian's package forgot, which gloo/transport/tcp/pair.h
// and context.h include; searched after all other folders, so that Gloo's own comes first where
// there is one. What the adapter needs of it is the size of the pointers to a buffer that others
// own, and how they end; Gloo's library holds the code that uses them.
#pragma once

#include <memory>

namespace gloo {

template <class T>
class WeakNonOwningPtr final {
  std::weak_ptr<T> object_;
};

template <class T>
class NonOwningPtr final {
  std::shared_ptr<T> object_;
};

}  // namespace gloo
