# NOT RUN: see flake.nix.
{ lib, rustPlatform, installShellFiles }:

rustPlatform.buildRustPackage {
  pname = "vioswitch";
  version = "0.1.0";

  src = lib.cleanSource ../..;
  cargoLock.lockFile = ../../Cargo.lock;

  nativeBuildInputs = [ installShellFiles ];

  # They want network namespaces, TAPs and QEMU.
  doCheck = false;

  postInstall = ''
    installManPage docs/man/*.[58]
    installShellCompletion scripts/completions/vioswitchctl.{bash,fish}
    installShellCompletion --zsh scripts/completions/_vioswitchctl
    install -D -m 644 scripts/vhost-user/50-vioswitchd.json -t $out/share/qemu/vhost-user
    install -D -m 644 scripts/systemd/vioswitchd.service -t $out/lib/systemd/system
    install -D -m 644 scripts/systemd/vioswitchd-metrics.socket -t $out/lib/systemd/system
    install -D -m 644 scripts/systemd/run-vioswitch-plug.mount -t $out/lib/systemd/system
    install -D -m 644 scripts/systemd/vioswitch-*@.service -t $out/lib/systemd/system
    substituteInPlace $out/lib/systemd/system/vioswitchd.service \
      --replace-fail /usr/bin/ $out/bin/
    substituteInPlace $out/share/qemu/vhost-user/50-vioswitchd.json \
      --replace-fail /usr/bin/ $out/bin/
  '';

  meta = {
    description = "vhost-user-net back-end for many VMs with an L2 learning switch";
    license = with lib.licenses; [ asl20 bsd3 ];
    platforms = lib.platforms.linux;
    mainProgram = "vioswitchd";
  };
}
