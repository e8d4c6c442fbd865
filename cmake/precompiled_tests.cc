// The program whose precompiled header tests take.
int main() { return 0; }
