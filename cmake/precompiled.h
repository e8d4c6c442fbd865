// What nearly every source includes, compiled once for each library. A source still includes what
// it uses: a build with -DSHARDRUN_PRECOMPILED=OFF shows what is missing.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>
