// The headers that all tests share are precompiled as part of this source, which has none of its
// own.
