// What nearly every test includes, precompiled.h and GoogleTest, compiled once for all tests.
#include <gtest/gtest.h>

#include "precompiled.h"
