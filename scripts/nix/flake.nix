# vioswitch as a flake: the package and a NixOS module.
#
# NOT RUN: written by the documentation of nixpkgs, on machines without Nix. Whoever runs it first
# will have something to mend, and is asked to say so.
#
#   inputs.vioswitch.url = "github:OWNER/vioswitch?dir=scripts/nix";
#   imports = [ vioswitch.nixosModules.default ];
#   services.vioswitch.enable = true;
{
  description = "vhost-user-net back-end for many VMs with an L2 learning switch";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forAll = f: nixpkgs.lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
    in
    {
      packages = forAll (pkgs: {
        default = pkgs.callPackage ./package.nix { };
      });

      nixosModules.default = { pkgs, lib, ... }: {
        imports = [ ./module.nix ];
        services.vioswitch.package =
          lib.mkDefault self.packages.${pkgs.stdenv.hostPlatform.system}.default;
      };
    };
}
