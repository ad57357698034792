#include "runtime/io/folder_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"

namespace foresail {
namespace {

class FolderLockTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "foresail-lock-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  std::filesystem::path folder;
};

TEST_F(FolderLockTest, AHeldFolderIsRefusedAndAReleasedOneTaken) {
  {
    const FolderLock first(folder);
    EXPECT_TRUE(first.held());
    EXPECT_THROW(FolderLock{folder}, Error);
  }
  EXPECT_TRUE(FolderLock(folder).held());
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "nothing is left on disk";
  EXPECT_THROW(FolderLock{folder / "missing"}, Error);
}

TEST_F(FolderLockTest, TheLockOfAKilledProcessIsGone) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t holder = ::fork();
  if (holder == 0) {
    const FolderLock lock(folder);
    if (::write(ready[1], "x", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(holder, SIGKILL);
  EXPECT_TRUE(FolderLock(folder).held());
  ::waitpid(holder, nullptr, 0);
}

}  // namespace
}  // namespace foresail
