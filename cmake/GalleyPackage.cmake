# What `cmake --install` and CPack ship: the binary, the model mini, manual page, completions, systemd unit, dashboard.
#
#   cmake --preset release -DBUILD_TESTING=OFF && cmake --build --preset release --target galley galley_cli_docs
#   (cd build/release && cpack -G DEB)      makes galley_VERSION_ARCH.deb
include_guard(GLOBAL)
include(GNUInstallDirs)
find_package(Python3 COMPONENTS Interpreter)

set(cli_docs ${PROJECT_BINARY_DIR}/cli_docs)
add_custom_target(galley_cli_docs
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/cli_docs.py $<TARGET_FILE:galley> ${cli_docs}
  DEPENDS galley)

install(TARGETS galley COMPONENT galley)
install(DIRECTORY models/mini DESTINATION ${CMAKE_INSTALL_DATADIR}/galley/models COMPONENT galley)
install(FILES ${cli_docs}/galley.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT galley)
install(FILES ${cli_docs}/galley.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME galley
  COMPONENT galley)
install(FILES ${cli_docs}/_galley DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT galley)
install(FILES ${cli_docs}/galley.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT galley)
install(FILES deploy/galley.service DESTINATION lib/systemd/system COMPONENT galley)
install(FILES deploy/galley.toml DESTINATION /etc/galley COMPONENT galley)
install(FILES deploy/grafana.json DESTINATION ${CMAKE_INSTALL_DATADIR}/galley COMPONENT galley)
install(FILES CHANGELOG.md README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT galley)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT galley)

set(CPACK_PACKAGE_NAME galley)
set(CPACK_PACKAGE_VENDOR "Galley")
set(CPACK_PACKAGE_CONTACT "Galley <galley@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Server for DeepSeek-V4 and V4.1 models")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL galley)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_GALLEY_PACKAGE_NAME galley)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/conffiles)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/conffiles "/etc/galley/galley.toml\n")
include(CPack)
