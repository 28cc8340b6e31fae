#pragma once

namespace galley {

// Opens /dev/null in place of each of standard input, output and error that the process was started
// without. Otherwise the next file or socket would get its number, and what is meant for a person
// would be written into it. First thing in main().
void open_standard_files();

}  // namespace galley
