#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"

namespace foresail {
namespace {

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "foresail-file-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Exit exit_of_reading(const std::filesystem::path& path, int64_t limit = 1 << 20) {
    try {
      read_file(path, limit);
    } catch (const Error& error) {
      EXPECT_EQ(error.thing(), path.string());
      return error.exit();
    }
    return Exit::done;
  }

  std::filesystem::path folder;
};

TEST_F(FileTest, ReadsBackExactlyWhatWasWritten) {
  std::string content = "line\n";
  content += '\0';
  content += "\xff end";
  write_file_atomically(folder / "a", content);
  EXPECT_EQ(read_file(folder / "a"), content);
  write_file_atomically(folder / "a", "");
  EXPECT_EQ(read_file(folder / "a"), "");
}

TEST_F(FileTest, LeavesNothingAsideAfterWriting) {
  write_file_atomically(folder / "a", "x");
  EXPECT_FALSE(std::filesystem::exists(folder / "a.tmp"));
}

TEST_F(FileTest, RefusesToReadWhatIsMissingAFolderTooLargeOrAPipe) {
  EXPECT_EQ(exit_of_reading(folder / "missing"), Exit::bad_input);
  EXPECT_EQ(exit_of_reading(folder), Exit::bad_input);
  write_file_atomically(folder / "large", std::string(100, 'x'));
  EXPECT_EQ(exit_of_reading(folder / "large", 99), Exit::bad_input);
  EXPECT_EQ(exit_of_reading(folder / "large", 100), Exit::done);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(exit_of_reading(folder / "pipe"), Exit::bad_input) << "and does not hang";
}

TEST_F(FileTest, AFailedWriteLeavesTheOldFileUntouched) {
  write_file_atomically(folder / "a", "old");
  std::filesystem::create_directory(folder / "a.tmp");  // the file aside cannot be opened
  EXPECT_THROW(write_file_atomically(folder / "a", "new"), Error);
  EXPECT_EQ(read_file(folder / "a"), "old");
}

TEST_F(FileTest, AFullDiskIsAnEnvironmentErrorThatNamesTheFile) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  std::filesystem::create_symlink("/dev/full", folder / "b.tmp");  // every write fails with ENOSPC
  try {
    write_file_atomically(folder / "b", "x");
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
    EXPECT_EQ(error.thing(), (folder / "b").string());
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "b"));
}

TEST_F(FileTest, WritingIntoAMissingFolderOrOverAFolderFails) {
  EXPECT_THROW(write_file_atomically(folder / "no" / "a", "x"), Error);
  std::filesystem::create_directory(folder / "taken");
  EXPECT_THROW(write_file_atomically(folder / "taken", "x"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "taken.tmp"));
}

TEST_F(FileTest, ADeviceOrPipeIsNeverReplaced) {
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THROW(write_file_atomically(folder / "pipe", "x"), Error);
  EXPECT_THROW(require_writable_file(folder / "pipe"), Error);
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST_F(FileTest, ALinkIsWrittenThrough) {
  write_file_atomically(folder / "a", "old");
  std::filesystem::create_symlink("a", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "a"), "new");
}

TEST_F(FileTest, WhatCouldNotBeWrittenIsKnownBefore) {
  write_file_atomically(folder / "f", "x");
  EXPECT_NO_THROW(require_writable_file(folder / "f"));
  EXPECT_NO_THROW(require_writable_file(folder / "new"));
  EXPECT_NO_THROW(require_creatable_folder(folder / "new" / "deeper"));
  EXPECT_THROW(require_writable_file(folder), Error);
  EXPECT_THROW(require_writable_file(folder / "no" / "new"), Error);
  EXPECT_THROW(require_writable_file(folder / "f" / "new"), Error);
  EXPECT_THROW(require_creatable_folder(folder / "f" / "new"), Error);
  EXPECT_FALSE(std::filesystem::exists(folder / "new")) << "asking creates nothing";
}

TEST_F(FileTest, CreatesFoldersWithParentsAndRefusesOverAFile) {
  create_folder(folder / "x" / "y");
  create_folder(folder / "x" / "y");
  EXPECT_TRUE(std::filesystem::is_directory(folder / "x" / "y"));
  write_file_atomically(folder / "f", "x");
  EXPECT_THROW(create_folder(folder / "f"), Error);
  EXPECT_THROW(create_folder(folder / "f" / "z"), Error);
}

TEST_F(FileTest, SyncsFilesAndFoldersAndNamesWhatIsMissing) {
  write_file_atomically(folder / "a", "x");
  EXPECT_NO_THROW(sync_path(folder / "a"));
  EXPECT_NO_THROW(sync_path(folder));
  EXPECT_THROW(sync_path(folder / "missing"), Error);
}

}  // namespace
}  // namespace foresail
