// Autocast's lists.
// Compiled together, because torch's headers cost more than our code.

#include "autocast.cpp"
