// A library of ops whose entry throws what is no std::exception.
extern "C" void shardrun_ops() { throw 42; }
